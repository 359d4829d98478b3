"""A server of one text over HTTP: one thread, a few connections, little time for each, whoever asks."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable

KIND = "text/plain; version=0.0.4; charset=utf-8"
PATIENCE = 5.0
"""Seconds for a whole request and its answer."""
MOST = 8
"""Connections at once.  The oldest gives way: who asks in earnest is quick."""
LONGEST = 4096
"""Bytes of a request."""
LOCAL = {"localhost", "127.0.0.1"}


class TextServer:
    """Answers `GET /metrics` at a bound socket with what `text` makes, until it is closed.

    `fresh`: seconds for which a text is given again.  Over TCP a request must be for this host by its own name: a page
    of another site could ask by a name that leads here.
    """

    def __init__(self, sock: socket.socket, text: Callable[[], bytes], fresh: float) -> None:
        self._sock, self._text, self._fresh = sock, text, fresh
        self._made, self._at = b"", float("-inf")
        self._asked: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        """Connections, the oldest first."""
        sock.listen(MOST)
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda loop, context: None)  # strangers write nothing into the job's log
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="hocket metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._take, sock=self._sock, limit=LONGEST)
        await self._end.wait()
        server.close()
        for task in list(self._asked):
            task.cancel()
        await asyncio.gather(*self._asked, return_exceptions=True)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._asked[task] = writer
        if len(self._asked) > MOST:
            oldest = next(iter(self._asked))
            self._asked.pop(oldest).transport.abort()
            oldest.cancel()
        try:
            with contextlib.suppress(OSError, asyncio.TimeoutError, asyncio.LimitOverrunError, EOFError):
                await asyncio.wait_for(self._answer(reader, writer), PATIENCE)
        except asyncio.CancelledError:  # it gave way
            return
        finally:
            self._asked.pop(task, None)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *rest = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = [line.partition(":") for line in rest]
        hosts = {value.strip().partition(":")[0] for name, _, value in pairs if name.strip().lower() == "host"}
        words = first.split(" ")
        if self._sock.family != socket.AF_UNIX and not hosts <= LOCAL:
            status, body = "403 Forbidden", b"ask 127.0.0.1\n"
        elif len(words) != 3 or words[0] != "GET" or words[1].partition("?")[0] != "/metrics":
            status, body = "404 Not Found", b"only GET /metrics is served\n"
        else:
            status, body = "200 OK", self._now()
        head = f"HTTP/1.1 {status}\r\nContent-Type: {KIND}\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
        await writer.drain()

    def _now(self) -> bytes:
        if time.monotonic() - self._at >= self._fresh:
            self._made, self._at = self._text(), time.monotonic()
        return self._made
