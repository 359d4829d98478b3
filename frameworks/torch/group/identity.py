"""Facts that a group and a backend both tell of themselves, and their end."""

from __future__ import annotations

from datetime import timedelta

import hocket
from hocket import Communicator
from hocket.torch.errors import in_torchs_words
from hocket.torch.register import NAME

WAIT = 5.0
"""Seconds that the end of a group waits for the other ranks."""


class GroupIdentity:
    """`comm` is the communicator."""

    comm: Communicator

    def getBackendName(self) -> str:
        return NAME

    def getRank(self) -> int:
        return self.comm.rank

    def getSize(self) -> int:
        return self.comm.size

    def setSequenceNumberForGroup(self) -> None:
        """Calls are numbered anyway, and the numbers compared in every message."""

    def getSequenceNumberForGroup(self) -> int:
        return self.comm.sequence

    def setTimeout(self, timeout: timedelta) -> None:
        """Set the limit of later calls' wait for other ranks."""
        with in_torchs_words():
            self.comm.set_timeout(timeout.total_seconds())

    def shutdown(self) -> None:
        """`destroy_process_group`: waits, bounded, for the others to come to it.

        It never raises: torch would keep this group and those that it has yet to destroy.
        """
        self._leave("destroy_process_group")

    def abort(self) -> None:
        """End all calls here and on the other ranks now, with an error that says so."""
        self.comm.abort(hocket.Error("abort() was called"))
        self._leave("abort")

    def _leave(self, call: str) -> None:
        self.comm.close(WAIT, log_as=f"{call}()")
