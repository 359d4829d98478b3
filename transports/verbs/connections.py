"""The connection beside each channel: it tells each end the other's queue pairs, and later that a process has died.

It proves the job's key, as RDMA itself proves nothing: a key to memory goes to the one peer that may use it.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hocket.control.dial import connect
from hocket.control.link import ControlLink, Message
from hocket.errors import TransportError
from hocket.transports.verbs.channels import ReadEnd, WriteEnd
from hocket.transports.verbs.device import Device
from hocket.transports.verbs.ends import Path

if TYPE_CHECKING:
    from hocket.transports.verbs.transport import VerbsTransport

PURPOSE = "verbs:"
QUEUE_PAIRS = 3
"""Queue pairs of a channel: one for packets; long pieces of memory alternate between the others."""
LOOK = 0.05
"""Seconds between looks while a peer's answer is awaited."""


class Incoming:
    """The reading end of a channel, and the connection to its writer."""

    def __init__(self, device: Device) -> None:
        self.reader = ReadEnd(device)
        self.link: ControlLink | None = None
        self._lock = threading.Lock()

    def attach(self, link: ControlLink, path: Path, offer: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            answer = self.reader.attach(path, offer)
            self.link = link
            return answer

    def close(self) -> None:
        with self._lock:
            self.reader.close()
        if self.link is not None:
            self.link.close()


class Arrival:
    """A writer's connection: it says what its queue pairs are, we answer with ours."""

    def __init__(
        self, transport: VerbsTransport, sock: socket.socket, find: Callable[[], Incoming], passing: bool
    ) -> None:
        self.transport, self.find, self.passing = transport, find, passing
        self.incoming: Incoming | None = None
        self.link = ControlLink(transport.context.reactor, sock)
        self.link.on_message, self.link.on_end = self._answer, self._ended
        self.link.start()

    def _answer(self, message: Message) -> None:
        try:
            incoming = self.find()
            answer = incoming.attach(self.link, self.transport.port.path(message["address"]), message["offer"])
            self.incoming = incoming
            self.link.send({"answer": answer})
        except (TransportError, KeyError, TypeError, ValueError, OverflowError) as why:
            self.link.send({"refused": str(why)})
            self.link.close()

    def _ended(self, how: str) -> None:
        if self.incoming is not None:
            self.incoming.reader.lost()
            if self.passing:
                self.incoming.close()


class Outgoing:
    """The writing end of a channel, and the connection to its reader."""

    def __init__(
        self, transport: VerbsTransport, rank: int, name: str, look: Callable[[], object] = lambda: None
    ) -> None:
        me, theirs = transport.context, transport.address_of(rank)
        deadline = time.monotonic() + me.timeout
        path = transport.port.path(theirs)
        place: Any = ("tcp", theirs["host"], theirs["port"])
        sock = connect(place, me.key, me.hello(PURPOSE + name, rank), me.timeout, look)
        self._changed = threading.Event()
        self._said: Message | None = None
        self._ended_how = ""
        self.link = ControlLink(me.reactor, sock)
        self.link.on_message, self.link.on_end = self._hear, self._ended
        self.writer = WriteEnd(transport.device, QUEUE_PAIRS)
        try:
            me.reactor.soon(self.link.start)
            self.link.send({"address": transport.port.address, "offer": self.writer.offer})
            while not self._changed.wait(LOOK):
                look()
                if time.monotonic() > deadline:
                    raise TransportError(f"rank {rank} did not answer within {me.timeout:g} s")
            message: Message = self._said or {"refused": self._ended_how}
            if "answer" not in message:
                raise TransportError(f"rank {rank} refused: {message.get('refused')}")
            self.writer.connect(path, message["answer"])
        except BaseException:
            self.close()
            raise

    def _hear(self, message: Message) -> None:
        self._said = message
        self._changed.set()

    def _ended(self, how: str) -> None:
        self._ended_how = how
        self.writer.lost()
        self._changed.set()

    def close(self) -> None:
        self.writer.close()
        self.link.close()
