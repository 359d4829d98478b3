"""A man in the middle of this process's own connections: all that its TCP streams carry passes through here.

This is behind the proof of the job's key, where most can be done: to forward, to record, and to flip a bit on demand.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

from hocket.control.handshake import Connection

seen = bytearray()
"""All that has passed, in either direction."""
_flip = threading.Event()


def flip() -> None:
    """One bit, in the middle of what passes next from here to the other rank."""
    _flip.set()


def between(link: socket.socket, altered: int = -1) -> socket.socket:
    """This end of a connection that he has got into.  `altered`: he flips a bit of the so-manyth piece from here."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        his, _ = server.accept()
    link.settimeout(None)
    his.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for source, target, outwards in ((his, link, True), (link, his, False)):
        threading.Thread(target=_pass, args=(source, target, outwards, altered), daemon=True).start()
    return ours


def _pass(source: socket.socket, target: socket.socket, outwards: bool, altered: int) -> None:
    count = 0
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            count += 1
            if outwards and (_flip.is_set() or count - 1 == altered):
                _flip.clear()
                middle = len(data) // 2
                data = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
            seen.extend(data)
            target.sendall(data)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def enter() -> None:
    """Into all connections that this process dials from now on."""
    from hocket.control import rendezvous
    from hocket.transports.tcp import transport

    for module, name in ((transport, "connect"), (rendezvous, "dial")):
        _wrap(module, name)


def _wrap(module: Any, name: str) -> None:
    dialled = getattr(module, name)

    def relayed(address: Any, *rest: Any) -> socket.socket:
        link: Connection = dialled(address, *rest)
        if address[0] != "tcp":
            return link
        ours = between(link)
        made = Connection(ours.family, ours.type, ours.proto, ours.detach())
        made.hello, made.key, made.dialled = link.hello, link.key, link.dialled  # both ends have proven themselves
        return made

    setattr(module, name, relayed)
