"""A Compressor's memory for each key: what it owes, what its method keeps, and what the calls have cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hocket.compression.method import Array, Kept


@dataclass(frozen=True)
class Stats:
    """The costs and losses of the calls with one key."""

    calls: int = 0
    nbytes: int = 0
    """Bytes of a vector, as float32 ..."""
    sent: int = 0
    """... and on the wire."""
    seconds: float = 0.0
    """Seconds of all calls."""
    error: float = 0.0
    """The error of the last call, norm(unsent) / norm(vector): the length of what this rank did not send, as a part of
    that of what it had to."""

    @property
    def ratio(self) -> float:
        """The ratio of a vector's bytes to those on the wire."""
        return self.nbytes / self.sent if self.sent else 1.0


@dataclass
class Entry:
    """A rank's memory for a key."""

    shape: tuple[int, ...]
    residual: Array
    """The vector that this rank still has to send."""
    lr: float | None = None
    steps: int = 0
    kept: Kept = field(default_factory=dict)
    stats: Stats = Stats()
    square: float | None = None
    """The square of the length of what the last call had to send; None: the error is known."""
    left_square: float = 0.0
    """The same of what it did not send, where that is not kept."""
    spare: Array | None = None
    """Memory for what a call of a codec's leaves, or one of a `Step`, until it counts."""
    sharded: bool = False
    """Are the vectors' rows the ranks'?  Then another number of ranks makes them other vectors."""

    def saved(self) -> dict[str, Any]:
        """Arrays and numbers."""
        return {
            "shape": list(self.shape), "residual": self.residual.copy(), "lr": self.lr, "steps": self.steps,
            "kept": dict(self.kept), "sharded": self.sharded,
        }  # fmt: skip


def loaded(saved: Sequence[dict[str, Any]], factor: float = 1.0) -> Entry:
    """One entry, that owes what all of these owe, times `factor`."""
    residual = np.asarray(sum(np.asarray(one["residual"], np.float32) for one in saved) * np.float32(factor))
    first = saved[0]
    kept, sharded = dict(first["kept"]), first["sharded"]
    return Entry(tuple(first["shape"]), residual, first["lr"], first["steps"], kept, sharded=sharded)
