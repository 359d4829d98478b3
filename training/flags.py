"""Which gradients a rank has, and of which variables, as numbers that travel with the gradients.

Where all ranks agree each flag's average is 0 or 1.  If one is in between, all ranks see it in the same step, and ask
each other who lacks what.  No further call is made while they agree.
"""

from __future__ import annotations

import contextlib
import re
import zlib
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from hocket import Communicator
from hocket.arguments import some_of
from hocket.errors import MismatchError

BITS = 32
"""Flags that are the bits of a digest of the variables' names and shapes."""
NUMBERS = re.compile(r"_\d+(?=/|$)")
"""Numbers that Keras gives; they may differ among ranks."""
WITHIN = "averages of gradients"
MOST = 8
"""Names in a text."""


def name_of(variable: Any) -> str:
    """The path of a variable: Keras 3's own, or TensorFlow's."""
    return str(getattr(variable, "path", None) or getattr(variable, "name", variable))


class Flags:
    """The flags of one program: `grads` of these variables."""

    def __init__(self, grads: Sequence[Any], variables: Sequence[Any]) -> None:
        self.names = [name_of(each) for each in variables]
        self.missing = [name for name, grad in zip(self.names, grads, strict=True) if grad is None]
        shapes = [tuple(each.shape) for each in variables]
        digest = zlib.crc32(repr([NUMBERS.sub("", "/".join(self.names)), shapes]).encode())
        bits = [digest >> i & 1 for i in range(BITS)]
        self.values = np.array([*bits, *(grad is not None for grad in grads)], np.float32)

    @contextlib.contextmanager
    def named(self) -> Generator[None, None, None]:
        """Inside the block, an error about calls that differ names the variables of this rank's."""
        try:
            yield
        except MismatchError as error:
            ours = some_of(self.names, MOST)
            raise MismatchError(f"{error}\nThis rank averages the gradients of {ours}", error.calls) from None

    def check(self, averages: Any, comm: Communicator) -> None:
        """Raise MismatchError, on all ranks, if the flags of ranks differ.

        `averages`: of the flags of all ranks; 0 and 1 mean that all have the same.
        """
        least = 0.5 / comm.size
        if not np.any((averages > least) & (averages < 1 - least)):
            return
        told = comm.share({"names": self.names, "missing": self.missing}, WITHIN)
        shared = set.intersection(*(set(one["missing"]) for one in told))
        lacking = {rank: [name for name in one["missing"] if name not in shared] for rank, one in enumerate(told)}
        lacking = {rank: names for rank, names in lacking.items() if names}
        if lacking:
            ranks = "; ".join(f"rank {rank} has no gradient of {some_of(each, MOST)}" for rank, each in lacking.items())
            raise MismatchError(
                f"{ranks}, which other ranks have: let all ranks use the same layers in each step, or freeze them on "
                "all ranks (trainable = False before compile)"
            )
        raise MismatchError(
            "ranks apply gradients of other variables in this step: "
            + "; ".join(f"rank {rank}: {some_of(one['names'], MOST)}" for rank, one in enumerate(told))
            + "; build the model alike on all ranks, with the same layers frozen"
        )
