"""The interface of a method of compression: how ranks average a vector with fewer bits.  compressor.py keeps its state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from hocket.arguments import choices
from hocket.codecs import HALF_NAMES
from hocket.compression.bucket import Bucket
from hocket.compression.memory import Array
from hocket.errors import ArgumentError
from hocket.extending import on_host, place

MethodState = dict[str, Array]
"""A method keeps this of a vector from one call to the next, by name."""
CHUNK = 1 << 15
"""Floats, that stay in a core's cache when they are read a second time."""


def checked_half(codec: str | None, what: str) -> str | None:
    """`codec`, "fp16", "bf16" or None: what `what`, which are float32, are sent as."""
    if codec is not None and codec not in HALF_NAMES:
        raise ArgumentError(f"codec={codec!r}: {what} are float32, {choices(codec, HALF_NAMES)}")
    return codec


def joined(kind: str, *arguments: object) -> str:
    """A method's name: "topk:0.01:fp16".  Arguments that are None are left out."""
    return ":".join([kind, *(str(each) for each in arguments if each is not None)])


class Averaged(NamedTuple):
    """A method's report on a call with a vector."""

    kept: MethodState
    nbytes: int
    """Bytes of a vector on the wire."""
    finite: Any = None
    """Is all of the result?  None: not checked.  On a GPU a bool there."""


class Method(Protocol):
    """One way to average.  It has no state of its own: that of each vector is handed to it, and handed back."""

    @property
    def name(self) -> str:
        """The name that `Compressor` takes: "topk:0.01"."""

    def average(self, comm: Any, vector: Array, result: Array, kept: MethodState, seed: int) -> Averaged:
        """Collective.

        `vector`: float32 of any shape, what this rank has to send; becomes what is left of it, that the others did not
        get.  `result`: becomes the average of all ranks' vectors, as far as it came; the same bits on all ranks.
        `kept`: empty in the first call; it is not changed, as a call may turn out not to count.  `seed`: of this vector
        and call, the same on all ranks.
        """

    def average_all(
        self, comm: Any, vectors: Bucket, results: Bucket, kepts: Sequence[MethodState], seeds: Sequence[int]
    ) -> list[Averaged]:
        """`average` of several vectors; methods that can, make fewer calls for them together."""
        each = zip(vectors.parts, results.parts, kepts, seeds, strict=True)
        return [self.average(comm, *one) for one in each]

    @property
    def host(self) -> str:
        """Why its vectors must be in host memory; "": they may be on a GPU."""
        return ""

    @property
    def feeds(self) -> bool:
        """Has it `feed`?  Then a `Compressor` calls that instead of `average_all`."""
        return False

    def feed(self, comm: Any, bucket: Bucket, before: Array | None, after: Array) -> list[Averaged]:
        """Make the vectors of `bucket` the average of all ranks' vectors + `before` (None: zeros), as far as it came.

        `after` becomes what did not.  `before` is not changed, unless it is `after`.
        """
        raise ArgumentError(f"{self.name!r} takes its residuals with its vectors: call average_all")

    def scatter(self, comm: Any, vector: Array, result: Array) -> Averaged:
        """`average` of vector[r] for rank r, where `vector` has a row for each rank."""
        raise ArgumentError(f"{self.name!r} has no reduce_scatter: only codecs of blocks have one")

    def gather(self, comm: Any, vector: Array, result: Array, kept: MethodState) -> Averaged:
        """Make the rows of `result` all ranks' vectors, by what changed since the call that returned `kept`."""
        raise ArgumentError(f"{self.name!r} has no allgather: only codecs of blocks have one")

    def rescaled(self, kept: MethodState, factor: float) -> MethodState:
        """`kept`, with what it owes times `factor`: the learning rate has changed, or what is owed decays.

        As it is, unless a method owes a part of it.
        """
        return kept

    def redealt(self, kepts: Sequence[MethodState], count: int, rank: int, size: int) -> MethodState:
        """Deal out anew what the ranks of another job kept: the part of rank `rank` of `size`, of a vector of `count`
        elements.

        Nothing, unless a method says otherwise.
        """
        return {}


class Together(Method):
    """A method whose one way of averaging is `average_all`; a single vector is a batch of one."""

    def average(self, comm: Any, vector: Array, result: Array, kept: MethodState, seed: int) -> Averaged:
        vectors, results = (Bucket(each.reshape(-1), [each]) for each in (vector, result))
        return self.average_all(comm, vectors, results, [kept], [seed])[0]


def times(kept: MethodState, name: str, factor: float) -> MethodState:
    """`kept`, with that array multiplied, if there is one."""
    return kept if factor == 1 or name not in kept else {**kept, name: kept[name] * factor}


def chunks(x: Array, step: int = CHUNK) -> Iterator[slice]:
    """Slices of the rows of x, `step` at a time, that a core's cache holds; on a GPU one of all."""
    count = len(x)
    step = step if on_host(x) else max(count, 1)
    return (slice(begin, min(begin + step, count)) for begin in range(0, count, step))


def single(number: float) -> float:
    """The float32 that is nearest: what arrays of float32 are multiplied by, whichever library's they are."""
    return float(np.float32(number))


def check_place(method: Method, x: Array) -> None:
    """Raise ArgumentError where this method cannot work with x."""
    if method.host and not on_host(x):
        raise ArgumentError(
            f"{method.name!r} works in host memory: {method.host}; x is {place(x)}: pass a copy in host memory, or "
            "take a codec, topk, dgc, ef21 or powersgd"
        )
