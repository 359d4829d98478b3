"""`Compressor`: averages vectors with fewer bits, and remembers what it owes each of them."""

from __future__ import annotations

import reprlib
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hocket.arguments import choices
from hocket.compression.dense import BY_NAME, Coded, DoubleSqueeze
from hocket.compression.low_rank import PowerSGD
from hocket.compression.method import Array, Kept, Method
from hocket.compression.sparse import RandomK, TopK
from hocket.compression.stateful import DGC, EF21
from hocket.errors import ArgumentError
from hocket.kernels.codecs import Codec

WITH_NUMBER: dict[str, Callable[[str], Method]] = {
    "topk": lambda text: TopK(float(text)), "randomk": lambda text: RandomK(float(text)),
    "powersgd": lambda text: PowerSGD(int(text)), "doublesqueeze": DoubleSqueeze,
    "dgc": lambda text: DGC(float(text)), "ef21": lambda text: EF21(resolved(text)),
}  # fmt: skip
"""What stands before the colon of a method's name."""


@dataclass(frozen=True)
class Stats:
    """What the calls with one key have cost and lost."""

    calls: int = 0
    nbytes: int = 0
    """Of a vector, as float32 ..."""
    sent: int = 0
    """... and on the wire."""
    seconds: float = 0.0
    """Of all calls."""
    error: float = 0.0
    """Of the last call: the length of what this rank did not send, as a part of that of what it had to."""

    @property
    def ratio(self) -> float:
        """How many times smaller a vector is on the wire."""
        return self.nbytes / self.sent if self.sent else 1.0


@dataclass
class _Entry:
    shape: tuple[int, ...]
    residual: Array
    """What this rank still has to send."""
    lr: float | None = None
    steps: int = 0
    kept: Kept = field(default_factory=dict)
    stats: Stats = Stats()


class Compressor:
    """Allreduce with error feedback: what a call does not send is added to the next call's vector of the same key.

    `method`: a codec of blocks ("int8", "fp8", "int4", "sign" or one that codecs.py makes), "doublesqueeze:int8",
    "topk:0.01", "randomk:0.01", "powersgd:4", "dgc:0.001", "ef21:topk:0.01" or a `Method`.  `feedback=False`: what is
    not sent is forgotten.  `decay`: what is owed is multiplied by it in each call.

    All ranks make the same calls with the same keys in the same order, as with any collective.

    Source of error feedback: Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel
    Distributed Training of Speech DNNs", Interspeech 2014; Karimireddy et al., "Error Feedback Fixes SignSGD and other
    Gradient Compression Schemes", ICML 2019.

    >>> import hocket, numpy as np
    >>> from hocket.compression import Compressor
    >>> def two_steps(comm):
    ...     c = Compressor(comm, "topk:0.5")
    ...     return [c.allreduce(np.array([3, 1], np.float32), key="w").tolist() for _ in range(2)]
    >>> hocket.local_world(2).run(two_steps)[0]
    [[3.0, 0.0], [3.0, 0.0]]
    """

    def __init__(self, comm: Any, method: str | Codec | Method, feedback: bool = True, decay: float = 1.0) -> None:
        self.comm, self.feedback, self.decay = comm, feedback, decay
        self.method = resolved(method)
        self._entries: dict[str, _Entry] = {}

    def allreduce(self, x: Any, key: str, op: str = "avg", lr: float | None = None) -> Any:
        """Average (or op "sum": add) all ranks' x in place, as far as the method sends it.  Returns x.

        `x`: a float32 NumPy array, or a torch tensor on the CPU, contiguous; of one shape in all calls with one `key`.
        `lr`: the learning rate that x will be multiplied by; if it changes, what is owed is rescaled, so that it counts
        as much as when it was left (at a rate of 0, and after one, it stays as it is).  A NaN or an infinity anywhere
        makes the whole result NaN on all ranks, and nothing is kept of the call: a training step that is skipped for it
        changes nothing.  Cost: that of the method, and some passes over x in NumPy.
        """
        self.allreduce_all([x], [key], op, lr)
        return x

    def allreduce_all(self, xs: Sequence[Any], keys: Sequence[str], op: str = "avg", lr: float | None = None) -> None:
        """`allreduce` of several, each with its key, in as few calls as the method can: those of a bucket of gradients.

        All ranks give the same ones together.  A NaN makes that vector NaN, and what the method joins with it.
        """
        if op not in ("avg", "sum"):
            raise ArgumentError(f"compressed sums have the ops avg and sum, not {op!r}")
        if len(keys) != len(xs) or len(set(keys)) < len(keys):
            raise ArgumentError(f"{len(xs)} vectors need as many keys, each once; got {reprlib.repr(keys)}")
        if not xs:
            return
        began, arrays = time.perf_counter(), [_array(x) for x in xs]
        entries = [self._entry(key, array.shape) for key, array in zip(keys, arrays, strict=True)]
        vectors = [self._owing(array, entry, lr) for array, entry in zip(arrays, entries, strict=True)]
        seeds = [zlib.crc32(f"{key}|{entry.steps}".encode()) for key, entry in zip(keys, entries, strict=True)]
        made = self.method.average_all(self.comm, vectors, [entry.kept for entry in entries], seeds)
        factor = np.float32(self.comm.size if op == "sum" else 1)
        for array, entry, vector, one in zip(arrays, entries, vectors, made, strict=True):
            entry.steps += 1
            rest, error = vector - one.sent, entry.stats.error
            if _finite(one.result):  # the same on all ranks
                error = float(np.linalg.norm(rest) / (np.linalg.norm(vector) or 1.0))
                entry.kept, entry.lr = one.kept, lr
                entry.residual = rest if self.feedback else entry.residual
                np.multiply(one.result, factor, out=array)
            else:
                array[...] = np.nan
            seconds = entry.stats.seconds + (time.perf_counter() - began) / len(made)
            entry.stats = Stats(entry.stats.calls + 1, array.nbytes, one.nbytes, seconds, error)

    def _owing(self, array: Array, entry: _Entry, lr: float | None) -> Array:
        """What is to be sent: the vector, and what is owed."""
        factor = self.decay * (entry.lr / lr if lr and entry.lr else 1.0)
        vector = array
        if self.feedback:
            vector = array + (entry.residual if factor == 1 else np.float32(factor) * entry.residual)
        # Of one that is not finite a part might not be sent, and stay.
        return vector if _finite(vector) else np.full_like(vector, np.nan)

    def stats(self, key: str) -> Stats:
        """Of the calls with this key."""
        if key not in self._entries:
            raise ArgumentError(f"no call had the key {key!r}; {choices(key, self._entries)}")
        return self._entries[key].stats

    def state_dict(self) -> dict[str, Any]:
        """What this rank must keep to go on as if nothing had happened: arrays and numbers, for any checkpoint."""
        entries = {
            key: {"residual": entry.residual.copy(), "lr": entry.lr, "steps": entry.steps, "kept": dict(entry.kept)}
            for key, entry in self._entries.items()
        }
        return {"method": self.method.name, "size": self.comm.size, "entries": entries}

    def load_state_dict(self, state: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        """Go on from `state_dict()`: this rank's; or those of all ranks, in their order.

        A job of another size wants those of all.  What the ranks owe to the average stays the same.
        """
        states = [state] if isinstance(state, dict) else list(state)
        saved = {(one["method"], one["size"]) for one in states}
        if len(saved) != 1:
            raise ArgumentError(f"the states are not of one job: {sorted(saved)}")
        method, size = saved.pop()
        if method != self.method.name:
            raise ArgumentError(f"the state is of {method!r}, this is {self.method.name!r}")
        if len(states) == 1 and size == self.comm.size:
            self._entries = {key: _loaded([one]) for key, one in states[0]["entries"].items()}
            return
        if len(states) != size:
            raise ArgumentError(f"{len(states)} states were given of {size} ranks: give those of all, in their order")
        if any(one["entries"].keys() != states[0]["entries"].keys() for one in states):
            raise ArgumentError("the states have different keys: give those that all ranks saved in the same step")
        self._entries = {key: self._redealt([one["entries"][key] for one in states]) for key in states[0]["entries"]}

    def _redealt(self, saved: Sequence[dict[str, Any]]) -> _Entry:
        """This rank takes over from ranks rank, rank + size, ...  An average divides by another number now."""
        rank, size = self.comm.rank, self.comm.size
        if size == len(saved):
            return _loaded([saved[rank]])
        entry = _loaded(saved[rank::size] or saved[:1], size / len(saved) if rank < len(saved) else 0.0)
        entry.kept = self.method.redealt([one["kept"] for one in saved], entry.residual.size, rank, size)
        return entry

    def _entry(self, key: str, shape: tuple[int, ...]) -> _Entry:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(shape, np.zeros(shape, np.float32))
        if entry.shape != shape:
            raise ArgumentError(f"key {key!r} stands for shape {entry.shape}, got {shape}: give it another key")
        return entry


def _finite(x: Array) -> bool:
    """Are all its elements?  Mostly their sum tells, which is faster."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(x.sum())) or bool(np.isfinite(x).all())


def resolved(method: str | Codec | Method) -> Method:
    """The method of this name."""
    if isinstance(method, Codec):
        return Coded(method)
    if not isinstance(method, str):
        return method
    if method in BY_NAME:
        return Coded(method)
    kind, colon, rest = method.partition(":")
    if not colon or kind not in WITH_NUMBER:
        known = [*BY_NAME, *(f"{name}:..." for name in WITH_NUMBER)]
        raise ArgumentError(f"{method!r} is no method; known: {', '.join(known)}")
    try:
        return WITH_NUMBER[kind](rest)
    except ArgumentError:
        raise
    except ValueError:
        raise ArgumentError(f"{method!r}: {rest!r} is no number") from None


def _loaded(saved: Sequence[dict[str, Any]], factor: float = 1.0) -> _Entry:
    """One entry, that owes what all of these owe, times `factor`."""
    residual = np.asarray(sum(np.asarray(one["residual"], np.float32) for one in saved) * np.float32(factor))
    first = saved[0]
    return _Entry(residual.shape, residual, first["lr"], first["steps"], dict(first["kept"]))


def _array(x: Any) -> Array:
    """The caller's memory as an array."""
    if isinstance(x, np.ndarray):
        array = x
    elif hasattr(x, "detach") and x.device.type == "cpu":
        array = x.detach().numpy()
    else:
        raise ArgumentError(f"a Compressor takes NumPy arrays and torch tensors on the CPU, got {type(x).__name__}")
    if array.dtype != np.float32 or not array.flags.c_contiguous or not array.flags.writeable:
        got = f"{array.dtype}{array.shape}"
        raise ArgumentError(f"a Compressor takes float32 that is contiguous and writable, got {got}")
    return array
