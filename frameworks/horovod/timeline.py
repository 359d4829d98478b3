"""The life of each tensor: for hocket's own traces, and as a file of Horovod's.

Its phases are NEGOTIATE_ALLREDUCE, from its submission on this rank until all ranks have it, and ALLREDUCE, until it is
done; so for each collective.  A rank that is traced (`hocket run --trace`) records them; the file, for Chrome's tracing
page and Perfetto, is rank 0's, and has a row for each tensor.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable
from typing import Any, TextIO

from hocket.errors import ArgumentError
from hocket.recording import Recorder
from hocket.training.agreeing import Watcher


class Timeline(Watcher):
    """Off until `start`, or while `recorder` is traced.  None: nothing is recorded."""

    def __init__(self, recorder: Recorder | None = None) -> None:
        self._recorder = recorder
        self.cycles = False
        self._file: TextIO | None = None
        self._began = 0
        self._lock = threading.Lock()
        self._rows: dict[str, int] = {}
        self._phases: dict[str, tuple[str, int]] = {}
        """By tensor: in which it is, and since when, ns."""

    @property
    def on(self) -> bool:
        """Is tracing on?"""
        return self._file is not None or (self._recorder is not None and self._recorder.traced)

    def start(self, path: str, cycles: bool = False) -> None:
        """Write to `path` from now on; to another file, if one was open."""
        self.stop()
        try:
            file = open(path, "w")  # noqa: SIM115 (it stays open)
        except OSError as why:
            raise ArgumentError(f"the timeline cannot be written to {path!r}: {why.strerror}") from why
        with self._lock:
            self._file, self._began = file, time.monotonic_ns()
            self._rows.clear()
            self._phases.clear()
            file.write("[\n")
            origin = {"start_time_since_epoch_in_micros": time.time_ns() // 1000}
            self._write({"name": "start", "ph": "M", "pid": 0, "args": origin}, first=True)
            self.cycles = cycles

    def stop(self) -> None:
        """Close the file, which is whole JSON then."""
        with self._lock:
            file, self._file = self._file, None
            self.cycles = False
            if file is not None:
                file.write("\n]\n")
                file.close()

    def begin(self, name: str, phase: str) -> None:
        """A tensor enters its first phase."""
        with self._lock:
            self._begin(name, phase)

    def performing(self, names: Iterable[str]) -> None:
        """The calls of these tensors are carried out now."""
        with self._lock:
            for name in names:
                phase = self._end(name)
                if phase is not None:
                    self._begin(name, phase.removeprefix("NEGOTIATE_"))

    def end(self, name: str) -> None:
        """This tensor's call is done."""
        with self._lock:
            self._end(name)

    def cycle(self) -> None:
        """Rank 0 is told of tensors now."""
        with self._lock:
            self._write({"name": "CYCLE_START", "ph": "i", "pid": 0, "s": "g", "ts": self._now()})

    def _begin(self, name: str, phase: str) -> None:
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = len(self._rows) + 1
            self._write({"name": "process_name", "ph": "M", "pid": row, "args": {"name": name}})
        self._phases[name] = phase, time.monotonic_ns()
        self._write({"name": phase, "ph": "B", "pid": row, "tid": 0, "ts": self._now()})

    def _end(self, name: str) -> str | None:
        """The phase that has ended; None: it began before the file."""
        phase, began = self._phases.pop(name, (None, 0))
        if phase is not None:
            self._write({"name": phase, "ph": "E", "pid": self._rows[name], "tid": 0, "ts": self._now()})
            if self._recorder is not None:
                self._recorder.span(f"{phase} {name}", began, time.monotonic_ns(), "tensors")
        return phase

    def _now(self) -> int:
        """Microseconds."""
        return (time.monotonic_ns() - self._began) // 1000

    def _write(self, event: dict[str, Any], first: bool = False) -> None:
        if self._file is not None:
            self._file.write(("" if first else ",\n") + json.dumps(event))
