"""The recorders of a job's ranks on this host tell this when it fails or hangs: lines of errors, a file of events."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from typing import TYPE_CHECKING

from hocket.collectives.recording import dump
from hocket.collectives.recording.processes import ProcessRecord, ancestors, described, recorders
from hocket.collectives.recording.standing import seen

if TYPE_CHECKING:
    from hocket.collectives.members.members import Members

log = logging.getLogger("hocket")


class FlightRecorder:
    """The recorder of one communicator."""

    def __init__(self, members: Members) -> None:
        self.members, self.world = members, members.world
        self._files = 0

    def look(self) -> list[ProcessRecord]:
        """The recorders of this job's ranks that can be read here: also of ranks that hang, or have died."""
        if self.world.recorder is None:
            return []
        try:
            return recorders(self.world.recorder.job, [*self.world.pids, *ancestors(os.getpid())])
        except OSError:  # no /proc
            log.debug("hocket: recorders", exc_info=True)
            return []

    def seen(self, processes: list[ProcessRecord]) -> dict[int, str]:
        """By world rank of a member: what its process does, and what it recorded last."""
        texts = seen(described(processes), self.members.name)
        return {rank: text for rank, text in texts.items() if rank in self.members.world_ranks}

    def file(self, processes: list[ProcessRecord]) -> str:
        """The end of an error's text: it names the file of what all ranks of this host did last.

        The first rank that comes here writes it: of many that fail at once, one reads the records of all.
        """
        if not processes or self.world.recorder is None:
            return ""
        name = re.sub(r"\W+", "-", f"{self.world.recorder.job}-{self.members.name}-{self._files}")[:100]
        self._files += 1
        try:
            base = dump.folder()
            path = os.path.join(base, f"{name}.txt")
            with contextlib.suppress(FileExistsError):
                if not os.path.exists(path):
                    dump.write(path, lambda: dump.text(processes))
                    dump.forget_old(base)
        except OSError as why:
            return f"\nWhat the ranks did last could not be written ({why})."
        return f"\nWhat the ranks on {os.uname().nodename} did last: {path}"
