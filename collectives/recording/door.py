"""`comm.recorder()`: what this rank and the others of its host did last."""

from __future__ import annotations

import os

from hocket.collectives.recording import dump
from hocket.collectives.recording.own import OwnRecorder
from hocket.collectives.recording.processes import described, recorders
from hocket.collectives.recording.records import Recorded
from hocket.collectives.recording.spans import AsData
from hocket.collectives.recording.standing import seen
from hocket.errors import ArgumentError, TransportError


class Recorder:
    """The recorder of a rank: its last calls, how they waited, marks and failures.

    It is memory that other processes of the same user can read while the rank hangs: `hocket top` does.  A ring of each
    engine has the last 1,024 records of 32 bytes.  Short calls are not timed one by one: their records have the last
    time that was known.
    """

    def __init__(self, own: OwnRecorder) -> None:
        self._own = own

    @property
    def job(self) -> str:
        """The same on all ranks of a job, or of an elastic one's generation: `hocket trace merge --job` takes it."""
        return self._own.job

    @property
    def private(self) -> str:
        """Why no other process can read it; "" if others can."""
        return self._own.recorder.refused

    @property
    def traced(self) -> bool:
        """Is everything recorded now (`comm.trace`, `hocket run --trace`)?"""
        return self._own.traces > 0

    def span(self, name: str, begin: int, end: int, group: str = "program", told: AsData | None = None) -> None:
        """Something that the program did, or a library: from `begin` to `end`, ns of `time.monotonic_ns()`.

        Only traces have it, on a row of its group; without one this does nothing.  It costs a microsecond and a record.
        Names are kept once each, up to 200 characters; there is room for some 10,000.  `told`: what the name says, as
        data (`hocket.recording.GradientSpan`, `HealedSpan`), for reports; spans of one name tell the same.

        >>> import hocket, time
        >>> def load(comm):
        ...     began = time.monotonic_ns()
        ...     comm.recorder().span("load the batch", began, time.monotonic_ns())
        >>> hocket.local_world(2).run(load)[0]
        """
        if self.traced:
            self._own.span(name, group, begin, max(begin, end), told)

    def recorded(self) -> Recorded:
        """This rank's part, as it is now: facts, a table of texts, and for each engine an array of records."""
        return self._own.recorded()

    def seen(self, comm: str = "world") -> dict[int, str]:
        """By rank of the job, for those on this host: what it does, and did last on the communicator of this name.

        Not collective, and asks nothing of the other ranks: they may hang.  Cost: a tenth of a millisecond for each
        process of this user.
        """
        return seen(described(recorders(self._own.job)), comm)

    def dump(self, path: str | os.PathLike[str]) -> None:
        """Write what this job's ranks on this host did last into a new file: where each stands, its last 1,000 events.

        Not collective: ranks that hang or have died (of `hocket run`) are in it, too.  Raises ArgumentError if the file
        is there already, TransportError if it cannot be written.
        """
        name = os.fspath(path)
        if os.path.exists(name):
            raise ArgumentError(f"recorder().dump: {name!r} exists already; name a new file")
        try:
            dump.write(name, lambda: dump.text(recorders(self._own.job)))
        except OSError as why:
            raise TransportError(f"recorder().dump: {name!r} cannot be written ({why.strerror})") from None
