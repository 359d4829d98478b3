"""Merges the output of many ranks, so that no line is mangled and each line names its rank.

A rank's words are passed on at once, whole lines first.  An unfinished line (a prompt, a progress bar) is shown as it
is; when another rank speaks, it is ended first, and goes on in a line of its own.  Bytes in, bytes out: no processes,
no descriptors.
"""

from __future__ import annotations

import re
from collections.abc import Callable

HOLD = 0.25  # seconds that an unfinished line waits for its rest: print() writes each argument apart


class Screen:
    """Where lines appear.  Two sources that write to one terminal share one screen."""

    def __init__(self) -> None:
        self.open: Source | None = None  # whose unfinished line the cursor stands in


class Source:
    """The output of one rank.  `write` puts bytes on the screen."""

    def __init__(self, prefix: bytes, screen: Screen, write: Callable[[bytes], object]) -> None:
        self._prefix, self._screen, self._write = prefix, screen, write
        self._held = b""
        self._since = 0.0
        self._rewind = False  # a carriage return came: what follows rewrites the line
        self._cut = False  # our unfinished line was ended by another source

    def feed(self, data: bytes, now: float) -> None:
        """Pass on what is complete; hold the rest a moment."""
        data = self._held + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if end and data[end - 1 : end] == b"\r" and end == len(data):
            end -= 1  # the line feed of \r\n may follow
        self._put(data[:end])
        if data[end:] and (end or not self._held):
            self._since = now
        self._held = data[end:]

    def due(self) -> float | None:
        """The time (time.monotonic) at which `flush` is to be called; None: nothing is held back."""
        return self._since + HOLD if self._held else None

    def flush(self) -> None:
        """Show the unfinished line."""
        held, self._held = self._held, b""
        self._put(held)

    def finish(self) -> None:
        """The rank has ended: end its line."""
        self.flush()
        if self._screen.open is self:
            self._end_line()

    def _put(self, data: bytes) -> None:
        for piece in re.split(rb"(\r\n|\n|\r)", data):
            if piece in (b"\n", b"\r\n"):
                self._end_line()
            elif piece == b"\r":
                self._rewind = True
            elif piece:
                self._text(piece)

    def _text(self, piece: bytes) -> None:
        if self._screen.open is self:
            self._write(b"\r" + self._prefix + piece if self._rewind else piece)
        else:
            if self._screen.open is not None:
                self._write(b"\n")
                self._screen.open._cut = True
            self._write(self._prefix + piece)
            self._screen.open = self
        self._rewind = self._cut = False

    def _end_line(self) -> None:
        if self._screen.open is self:
            self._write(b"\n")
            self._screen.open = None
        elif not self._cut:  # the end of a line that was ended for us needs nothing
            if self._screen.open is not None:
                self._write(b"\n")
                self._screen.open._cut = True
                self._screen.open = None
            self._write(self._prefix + b"\n")
        self._rewind = self._cut = False
