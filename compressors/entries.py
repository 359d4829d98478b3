"""A Compressor's memory for each key: what it owes, what its method keeps, and what the calls have cost."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hocket.compression.memory import Array, fetched
from hocket.compression.method import MethodState
from hocket.errors import ArgumentError

STATE = {"method", "size", "entries"}

def text(key: Any) -> str:
    """A key, or ArgumentError."""
    if not isinstance(key, str):
        raise ArgumentError(f"key={reprlib.repr(key)} must be a string, the name of a vector: allreduce(x, key)")
    return key


Rate = float | None
"""A learning rate, what a gradient will be multiplied by; None: it is not known."""


def rate_of(group: Mapping[str, Any]) -> Rate:
    """That of one of the `param_groups` of a torch optimizer, which may have none."""
    lr = group.get("lr")
    return None if lr is None else float(lr)


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
class KeyEntry:
    """A rank's memory for a key."""

    shape: tuple[int, ...]
    residual: Array
    """The vector that this rank still has to send."""
    lr: float | None = None
    steps: int = 0
    kept: MethodState = field(default_factory=dict)
    stats: Stats = Stats()
    square: Any = None
    """The square of the length of what the last call had to send; None: the error is known."""
    left_square: Any = 0.0
    """The same of what it did not send, where that is not kept; of vectors on a GPU both are of all in the call."""
    spare: Array | None = None
    """Memory for what a call leaves, until it counts."""
    sharded: bool = False
    """Are the vectors' rows the ranks'?  Then another number of ranks makes them other vectors."""

    def saved(self) -> dict[str, Any]:
        """Arrays and numbers."""
        return {
            "shape": list(self.shape), "residual": fetched(self.residual).copy(), "lr": self.lr, "steps": self.steps,
            "kept": parked(self.kept), "sharded": self.sharded,
        }  # fmt: skip


def parked(kept: MethodState) -> MethodState:
    """The same in host memory, which waits for a GPU."""
    return {name: fetched(each) for name, each in kept.items()}


def loaded(saved: Sequence[dict[str, Any]], factor: float = 1.0) -> KeyEntry:
    """One entry, that owes what all of these owe, times `factor`."""
    residual = np.asarray(sum(np.asarray(one["residual"], np.float32) for one in saved) * np.float32(factor))
    first = saved[0]
    kept, sharded = dict(first["kept"]), first["sharded"]
    return KeyEntry(tuple(first["shape"]), residual, first["lr"], first["steps"], kept, sharded=sharded)


def of_all(state: Any, method: str, here: int) -> tuple[list[dict[str, Any]], int]:
    """The states that `load_state_dict` was given, of the job's ranks or of one, and the size of that job."""
    states: list[dict[str, Any]] = list(state) if isinstance(state, (list, tuple)) else [state]
    if not states or any(not isinstance(one, dict) or not one.keys() >= STATE for one in states):
        raise ArgumentError(f"{reprlib.repr(state)} is not a state: give what state_dict() returned, or all ranks'")
    saved = {(one["method"], one["size"]) for one in states}
    if len(saved) != 1:
        raise ArgumentError(f"the states are of different jobs: {sorted(saved)}; give those that one job saved")
    was, size = saved.pop()
    if was != method:
        raise ArgumentError(f"the state is of {was!r}, this is {method!r}")
    if len(states) != size and not (len(states) == 1 and size == here):
        raise ArgumentError(
            f"got {len(states)} states of a job of {size} ranks: give those of all ranks, in rank order"
        )
    if any(one["entries"].keys() != states[0]["entries"].keys() for one in states):
        raise ArgumentError("the states have different keys: give those that all ranks saved in the same step")
    return states, size
