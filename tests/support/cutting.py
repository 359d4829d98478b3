"""A relay in this process's own connections: it carries their bytes, cuts, delays and alters them.

As man_in_the_middle.py it is entered behind the proof of the job's key.  `enter` lets connections heal inside a host.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from hocket.control.handshake import Connection

relays: list[Relay] = []
"""Relays that carry something."""
made = 0
"""The number of them so far."""


class Relay:
    """Between this end of a connection and the other.  `at`: after so many bytes outwards it cuts by itself."""

    def __init__(self, link: Connection, at: int = -1, flip: Callable[[int], int] = lambda n: -1) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.end = socket.create_connection(server.getsockname())
            self._his, _ = server.accept()
        self._link, self._left, self._flip = link, at, flip
        self.delay = 0.0
        link.settimeout(None)
        for each in (self._his, link):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for source, target in ((self._his, link), (link, self._his)):
            threading.Thread(target=self._carry, args=(source, target), daemon=True).start()
        relays.append(self)

    def cut(self, side: int = 2) -> None:
        """Towards this process (0), the other one (1), or both; what is on the way is lost."""
        for each in (self._his, self._link)[side if side < 2 else 0 : side + 1]:
            with contextlib.suppress(OSError):  # a reset
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                each.shutdown(socket.SHUT_RDWR)
        if self in relays:
            relays.remove(self)

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if self.delay:
                    time.sleep(self.delay)
                if source is self._his and (bit := self._flip(len(data))) >= 0:
                    data = data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]
                if source is self._his and 0 <= self._left <= len(data):
                    target.sendall(data[: self._left])
                    time.sleep(0.002)
                    break
                if source is self._his:
                    self._left -= len(data)
                target.sendall(data)
        self.cut()
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def enter(make: Callable[[Connection], Relay] = Relay) -> None:
    """Into all connections, of data and control, that this process dials from now on."""
    from hocket.control import rendezvous
    from hocket.transports.tcp import transport
    from hocket.transports.tcp.long import paths

    transport.HEALS_INSIDE = True
    for module, name in ((transport, "connect"), (paths, "dial"), (rendezvous, "dial")):
        _wrap(module, name, make)


def _wrap(module: Any, name: str, make: Callable[[Connection], Relay]) -> None:
    dialled = getattr(module, name)

    def relayed(address: Any, key: Any, hello: Any, *rest: Any) -> socket.socket:
        global made
        link: Connection = dialled(address, key, hello, *rest)
        if hello.purpose[2] == "q" or address[0] != "tcp":  # it only asks
            return link
        made += 1
        ours = make(link).end
        end = Connection(ours.family, ours.type, ours.proto, ours.detach())
        end.hello, end.key, end.dialled = link.hello, link.key, link.dialled
        return end

    setattr(module, name, relayed)


def now_and_then(seconds: float, seed: int = 0, most: int = 1 << 30) -> Callable[[], int]:
    """Cut connections, on average so often.  The function that is returned ends it, and says how often it was."""
    dice, over, cuts = random.Random(seed + os.getpid()), threading.Event(), [0]

    def run() -> None:
        while cuts[0] < most and not over.wait(dice.uniform(0, 2 * seconds)):
            if relays:
                dice.choice(relays).cut(dice.randrange(3))
                cuts[0] += 1

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def end() -> int:
        over.set()
        thread.join()
        return cuts[0]

    return end


def flips(one_in: float, seed: int = 0) -> Callable[[int], int]:
    """A `flip` of a relay: each bit that passes is turned with this probability."""
    dice = random.Random(seed)
    return lambda n: dice.randrange(8 * n) if dice.random() < 8 * n * one_in else -1
