"""The launcher's standard input, which rank 0 reads on another host."""

from __future__ import annotations

import os
from selectors import EVENT_READ, DefaultSelector
from typing import TYPE_CHECKING

from hocket.tools.remote.frames import FrameKind

if TYPE_CHECKING:
    from hocket.tools.remote.machines import HostAgent

WINDOW = 1 << 18
"""Bytes that may be on their way to a rank that reads them slowly, or not at all."""


class Input:
    """Passes on what comes, as fast as rank 0 takes it."""

    def __init__(self, machine: HostAgent, selector: DefaultSelector) -> None:
        self._machine, self._selector = machine, selector
        self._ahead = 0
        self._open, self._file = True, False
        self._listen()

    def feed(self, data: bytes, now: float) -> None:
        self._ahead += len(data)
        self._machine.send(FrameKind.INPUT, 0, data)
        if self._ahead >= WINDOW and not self._file:
            self._selector.unregister(0)

    def finish(self) -> None:
        self._open = False
        self._machine.send(FrameKind.INPUT)

    def taken(self, nbytes: int) -> None:
        """Rank 0 has so many bytes more."""
        full = self._ahead >= WINDOW
        self._ahead -= nbytes
        if full and self._open and self._ahead < WINDOW:
            self._listen()

    def _listen(self) -> None:
        try:
            if os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp():
                return  # in the background, where reading would stop the launcher
            if not self._file:
                self._selector.register(0, EVENT_READ, self)
        except (PermissionError, OSError, ValueError):  # a file, which is always ready; or there is none
            self._file = True
        while self._file and self._open and self._ahead < WINDOW:
            try:
                data = os.read(0, 65536)
            except OSError:
                data = b""
            if data:
                self.feed(data, 0.0)
            else:
                self.finish()
