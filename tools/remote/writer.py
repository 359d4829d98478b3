"""The launcher's words to its agents: a thread writes them, and a sign of life each second.

So agents hear that the launcher lives also while it waits for a terminal that shows nothing (Ctrl-S, a pager).
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from typing import IO

from hocket.tools.remote.frames import PULSE, FrameKind, packed


class Outbox:
    """Bytes for one agent."""

    def __init__(self, sink: IO[bytes]) -> None:
        self.sink, self.data, self.last, self.open = sink, bytearray(), False, True
        os.set_blocking(sink.fileno(), False)


class FrameWriter:
    """One thread for all agents; it ends with `close`."""

    def __init__(self) -> None:
        self._boxes: list[Outbox] = []
        self._lock = threading.Lock()
        self._wake, self._wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._closed = False
        self.paused = False
        self._thread = threading.Thread(target=self._run, name="hocket run: to agents", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def box(self, sink: IO[bytes]) -> Outbox:
        made = Outbox(sink)
        with self._lock:
            self._boxes.append(made)
        return made

    def send(self, box: Outbox, data: bytes, last: bool = False) -> None:
        """`last`: then the agent's input ends."""
        with self._lock:
            box.data += data
            box.last = box.last or last
        self._alarm()

    def pause(self) -> None:
        """Say that no sign of life will come until `paused` is False again.  Waits a moment until that is written."""
        self.paused = True
        with self._lock:
            for box in self._boxes:
                box.data += packed(FrameKind.PAUSE)
        self._alarm()
        end = time.monotonic() + PULSE / 2
        while any(box.data and box.open for box in self._boxes) and time.monotonic() < end:
            time.sleep(0.01)

    def close(self) -> None:
        self._closed = True
        self._alarm()
        if self._thread.ident is not None:
            self._thread.join()
        for box in self._boxes:
            self._end(box)
        os.close(self._wake)
        os.close(self._wakes)

    def _alarm(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wakes, b"!")

    def _run(self) -> None:
        pulse, said = packed(FrameKind.PULSE), 0.0
        while not self._closed:
            now = time.monotonic()
            with self._lock:
                boxes = [box for box in self._boxes if box.open]
                if now - said >= PULSE and not self.paused:
                    said = now
                    for box in boxes:
                        box.data += b"" if box.data else pulse
                busy = [box for box in boxes if box.data or box.last]
            readable, writable, _ = select.select([self._wake], [box.sink for box in busy], [], PULSE / 2)
            if readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
            for box in busy:
                if box.sink in writable:
                    self._write(box)

    def _write(self, box: Outbox) -> None:
        with self._lock:
            try:
                while box.data:
                    del box.data[: os.write(box.sink.fileno(), box.data[:65536])]
            except BlockingIOError:
                return
            except OSError:  # it has ended: the reader of its output says so
                box.data.clear()
                box.last = True
            if box.last:
                self._end(box)

    def _end(self, box: Outbox) -> None:
        box.open = False
        with contextlib.suppress(OSError):
            box.sink.close()
