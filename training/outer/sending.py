"""Averaging a vector: as it is, by a codec of a call, or by a `Compressor`, which owes what it does not send."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any

from hocket.codecs import HALF_NAMES, Codec
from hocket.compression import Bucket, Compressor, Method, resolved
from hocket.errors import ArgumentError

Send = str | Codec | Method | None
"""None: floats.  "fp16", "bf16": halves.  Otherwise a method of a `Compressor`."""


class Sending:
    """One way for all fragments.  `decay`: by which what is owed is multiplied in each round."""

    def __init__(self, send: Send, decay: float = 1.0) -> None:
        self.half = send if isinstance(send, str) and send in HALF_NAMES else None
        self.method = None if send is None or self.half else resolved(send)
        self.decay = decay
        self.compressor: Compressor | None = None
        self._loaded: Any = None
        """This rank's state, or those of all ranks of a job, until it is known among whom it counts."""

    @property
    def host(self) -> bool:
        """Are vectors sent from host memory alone?"""
        return self.method is not None and bool(self.method.host)

    @property
    def name(self) -> str:
        return self.half or ("float" if self.method is None else self.method.name)

    def fresh(self, comm: Any) -> bool:
        """Does this rank come to these others without what its method keeps from call to call?"""
        return self.method is not None and self._loaded is None and getattr(self.compressor, "comm", None) is not comm

    def average(self, comm: Any, bucket: Bucket, fresh: bool) -> int:
        """The average of all ranks' buckets, in place.  Bytes that one is on the wire; an allreduce sends twice that
        times (p-1)/p.  Collective.  `fresh`: is any rank?
        """
        if self.method is None:
            comm.allreduce(bucket.flat, "avg", bucket.flat, codec=self.half)
            return int(bucket.flat.nbytes // (2 if self.half else 1))
        compressor = self._begun(comm) if fresh or self.compressor is None else self.compressor
        compressor.allreduce_all(bucket)
        return sum(compressor.stats(key, error=False).sent for key in bucket.keys)

    def check(self, dtype: Any) -> None:
        """Raises ArgumentError if vectors of this dtype are not sent so."""
        if dtype != "float32" and self.name != "float":
            raise ArgumentError(f"send={self.name!r} takes float32 parameters, these are {dtype}: pass send=None")

    def _begun(self, comm: Any) -> Compressor:
        """A compressor among these ranks.  Of what it kept among others this rank takes what it owes, and no more."""
        assert self.method is not None
        before, self.compressor = self.compressor, Compressor(comm, self.method, decay=self.decay)
        if self._loaded is not None:
            self.compressor.load_state_dict(_fitting(self._loaded, comm.size))
        elif before is not None:
            self.compressor.load_state_dict(_alone(before.state_dict(), comm.size))
        self._loaded = None
        return self.compressor

    def state_dict(self, comm: Any) -> Any:
        """This rank's, among the ranks of `comm` if it has averaged nothing since it was loaded."""
        if self.compressor is None and isinstance(self._loaded, list):
            self._begun(comm)
        return self._loaded if self.compressor is None else self.compressor.state_dict()

    def load_state_dicts(self, states: Sequence[Any]) -> None:
        """Load the state of this rank, or those of all ranks of a job of another size.  They count from the next call
        on."""
        self.compressor, self._loaded = None, None
        if self.method is not None and any(state is not None for state in states):
            if any(state is None or state["method"] != self.method.name for state in states):
                raise ArgumentError(f"the state was not saved with send={self.name!r}: {reprlib.repr(states)}")
            self._loaded = states[0] if len(states) == 1 else [*states]


def _fitting(loaded: Any, size: int) -> Any:
    """All ranks' states are dealt anew; this rank's counts among so many: others may be late already."""
    return loaded if isinstance(loaded, list) or loaded["size"] == size else _alone(loaded, size)


def _alone(state: dict[str, Any], size: int) -> dict[str, Any]:
    """A compressor's state without what its method keeps: newcomers have none of it."""
    entries = {key: {**entry, "kept": {}, "steps": 0} for key, entry in state["entries"].items()}
    return {**state, "size": size, "entries": entries}
