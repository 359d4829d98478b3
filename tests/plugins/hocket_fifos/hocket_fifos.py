"""A transport of another package whose channels are C: named pipes between the processes of a host.

The cold half.  Each rank reads from pipes in a directory of its own, one for each communicator and peer.

    python -m hocket.conformance hocket_fifos:FifosTransport
    HOCKET_TRANSPORT=fifos hocket bench allreduce -n 2 --check
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any

from _hocket_fifos import channel

from hocket.transports.base import Context, Traits


class FifosTransport:
    name = "fifos"
    traits = Traits(segment=32768)
    """Half of what a pipe holds, so that a rank fills one half while its peer empties the other."""

    def __init__(self, context: Context) -> None:
        self.directory = tempfile.mkdtemp(prefix="hocket-fifos-")

    @staticmethod
    def available() -> str | None:
        return None if hasattr(os, "mkfifo") else "this system has no named pipes"

    def offer(self) -> str:
        return self.directory

    def reach(self, offers: Sequence[Any]) -> list[str | None]:
        return [None if offer and os.path.isdir(offer) else "its pipes are not visible here" for offer in offers]

    def channels(self, name: str, index: int, members: Sequence[int]) -> FifosChannels:
        return FifosChannels(self.directory, name, index, len(members))

    def close(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


class FifosChannels:
    def __init__(self, directory: str, name: str, index: int, size: int) -> None:
        self.directory, self.name, self.index, self.size = directory, name, index, size
        self.incoming: list[int] = []
        self.fds: list[int] = []

    def _open(self, directory: str, source: int, flag: int) -> int:
        self.fds.append(os.open(f"{directory}/{self.name}-{source}", flag | os.O_NONBLOCK))
        return self.fds[-1]

    def offer(self) -> str:
        for peer in range(self.size):
            os.mkfifo(f"{self.directory}/{self.name}-{peer}", 0o600)
            self.incoming.append(self._open(self.directory, peer, os.O_RDONLY))
        return self.directory

    def open(self, peer: int, offer: str) -> tuple[Any, Any]:
        return channel(self._open(offer, self.index, os.O_WRONLY), True), channel(self.incoming[peer], False)

    def close(self) -> None:
        while self.fds:
            os.close(self.fds.pop())
