"""A rank notes and shows this of itself: marks, its recorder, traces."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING, cast

from hocket.arguments import whole
from hocket.collectives.job.world import World
from hocket.collectives.recording.door import Recorder
from hocket.collectives.recording.records import Kind
from hocket.errors import ArgumentError

if TYPE_CHECKING:
    from hocket.collectives.communicator.communicator import Communicator


class Observing:
    """A part of `Communicator`."""

    world: World

    def mark(self, name: str, value: int = 0) -> None:
        """Note in this rank's recorder that the program has come to a place: "step", say, with its number.

        It is seen in traces, in `hocket top`, and in the file that an error names.  `value`: 0 to 2**63 - 1.  Not
        collective; about a microsecond.  Of the name 200 characters count.  HOCKET_RECORDER=0: it does nothing.

        >>> import hocket
        >>> def step(comm):
        ...     comm.mark("step", 7)
        ...     return int(comm.recorder().recorded().rings[0].records[-1]["bytes"])
        >>> hocket.local_world(2).run(step)[0]
        7
        """
        if not isinstance(name, str) or not name:
            raise ArgumentError(f"mark: name={reprlib.repr(name)} must be a string")
        value = whole(value, "value")
        if not 0 <= value < 1 << 63:
            raise ArgumentError(f"mark: value={value} must be between 0 and 2**63 - 1")
        if self.world.recorder is not None:
            self.world.recorder.put(Kind.MARK, name, value)

    def recorder(self) -> Recorder:
        """This rank's latest events, and (`dump`) those of the other ranks of this host.

        Raises ArgumentError if HOCKET_RECORDER=0, and in a fork of a rank.

        >>> import hocket, numpy as np, os, tempfile
        >>> def last(comm):
        ...     comm.allreduce(np.ones(2))
        ...     comm.barrier()
        ...     with tempfile.TemporaryDirectory() as folder:
        ...         comm.recorder().dump(os.path.join(folder, "events.txt"))
        ...         return "allreduce(float64[2], op='sum')" in open(os.path.join(folder, "events.txt")).read()
        >>> hocket.local_world(2).run(last)[0]
        True
        """
        if self.world.recorder is None:
            raise ArgumentError(
                "recorder: nothing is recorded: HOCKET_RECORDER is 0, or this process is a fork of a rank"
            )
        return Recorder(self.world.recorder)

    def trace(self, path: str | os.PathLike[str]) -> AbstractContextManager[None]:
        """Record everything that happens in the block on all ranks, and write it as one file.

        All ranks call it.  `path`: rank 0's file.  Its name ends in .pftrace or .pftrace.gz (Perfetto's format), .json
        or .json.gz (Chrome's); `hocket report` reads it too.  The clocks of all hosts are aligned by messages before
        and after the block.  No call may be under way at its beginning and its end.  Cost: 20 to 50 ns an event, and a
        microsecond for each when the file is written.  Where a trace cannot begin on a rank, or rank 0 cannot write it,
        all ranks raise ArgumentError; so they do for the name, and each for HOCKET_RECORDER=0.  If the block itself
        fails, there is no file, and the error's note names what this rank recorded.

        >>> with comm.trace("step.pftrace.gz"):  # doctest: +SKIP
        ...     comm.allreduce(x)
        """
        recorder = self.world.recorder
        if recorder is None:
            raise ArgumentError("trace: nothing is recorded: HOCKET_RECORDER is 0, or this process is a fork of a rank")
        # What makes files of records stands on the hub, and is loaded when somebody asks for it.
        trace: Callable[..., AbstractContextManager[None]] = import_module("hocket.observe.session").trace
        return trace(cast("Communicator", self), os.fspath(path), recorder.trace, recorder.untrace)
