"""A socket that others connect to: accepts, has them prove themselves, hands the proven ones on.

A stranger costs one descriptor for at most 2 seconds and is told nothing: junk, port scans and connections that
never speak are closed, with at most one line of log a second.  A flood of them costs some 30 us each and at most half
of a core, and keeps nobody out: a client speaks as soon as it is connected, so the connection silent for longest
gives way, and one whose hello was made with the key never does.  Runs on the reactor, never blocks.  Knows nothing of
what is said on a connection once it is proven.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from hocket.control.addresses import BindAddress, _listen
from hocket.control.dial import peer_uid, show  # fmt: skip
from hocket.control.handshake import ATTEMPT, COORDINATOR, NOWHERE, AuthError, Connection, Hello, ServerSide, where
from hocket.control.reactor import Reactor
from hocket.errors import ArgumentError
from hocket.system.machine import wish

log = logging.getLogger("hocket.control")
HALF_OPEN = 128  # connections that have not said a hello of ours; the oldest gives way
ANSWERS = 64  # refusals told in one SWEEP: more is a flood, whose sender does not care
BATCH = 64  # connections taken before others of this thread have a turn
SWEEP = 0.2  # seconds between two looks for those that are too old


class Unproven(NamedTuple):
    """A connection that has not proven itself."""

    server: ServerSide
    since: float


class Listener:
    """Accepts at `address`; calls `on_peer(sock, hello)` on the reactor's thread with a non-blocking, proven socket.

    address: ("unix", path), or ("tcp", host, port) where port is 0 (the system chooses) or candidates of which the
    first free one is taken.  key None: proof is the user id alone, so unix only.  `target`, `epoch`: the listener, as
    the clients must mean it (handshake.Hello).  `address` holds what was bound.
    """

    def __init__(
        self, reactor: Reactor, address: BindAddress, key: bytes | None,
        on_peer: Callable[[Connection, Hello], object], target: int = COORDINATOR, epoch: int = 0,
    ) -> None:  # fmt: skip
        if key is None and address[0] != "unix":
            raise ArgumentError("a TCP listener needs a key: set HOCKET_SECRET or HOCKET_SECRET_FILE")
        self._reactor, self._key, self._on_peer = reactor, key or b"", on_peer
        self._silent: dict[socket.socket, Unproven] = {}  # oldest first
        self._proving: dict[socket.socket, Unproven] = {}  # their hello was made with the key
        self._sweeping = False
        self._answers = ANSWERS
        self._said, self._unsaid = 0.0, 0
        self._closed = False
        self._sock, self.address = _listen(address)
        self._inode = os.lstat(self.address[1]).st_ino if self.address[0] == "unix" else 0
        # One interface is bound, so every connection's own end is this.
        self._me = target, epoch, NOWHERE if self._inode else where(self._sock.getsockname())
        self._sock.setblocking(False)
        reactor.add(self._sock, self._accept)

    def close(self) -> None:
        """Stop listening, drop the half-open connections, remove the path.  Those handed on stay open."""
        if self._closed or self._reactor.dead:  # dead: also the copy in a forked child, which does not own the path
            return
        self._closed = True
        if self.address[0] == "unix":
            with contextlib.suppress(OSError):
                if os.lstat(self.address[1]).st_ino == self._inode:
                    os.unlink(self.address[1])
        self._reactor.remove(self._sock, close=True)
        self._reactor.soon(self._drop_all)

    def _drop_all(self) -> None:
        for sock in [*self._silent, *self._proving]:
            self._drop(sock)

    def _accept(self) -> None:
        began = time.thread_time()
        for _ in range(BATCH):
            try:
                sock, _ = self._sock.accept()
            except BlockingIOError:
                return
            except OSError as why:
                if why.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                    self._complain(f"cannot accept: {why.strerror}")
                    for each in list(self._silent):
                        self._drop(each)
                    self._look_away(0.1)  # readiness would repeat for ever
                    return
                continue  # the client went away between its call and ours
            self._take(sock)
        self._look_away(time.thread_time() - began)  # a flood gets half of a core

    def _look_away(self, seconds: float) -> None:
        self._reactor.remove(self._sock)
        self._reactor.later(seconds, lambda: None if self._closed else self._reactor.add(self._sock, self._accept))

    def _take(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        if self._inode and peer_uid(sock) != os.geteuid():
            self._complain(f"refused user id {peer_uid(sock)}")
            sock.close()
            return
        self._silent[sock] = Unproven(ServerSide(self._key, *self._me), time.monotonic())
        self._read(sock)  # an honest client has spoken by now
        if sock in self._silent or sock in self._proving:
            self._reactor.add(sock, lambda: self._read(sock))
        if not self._sweeping:
            self._sweeping = True
            self._reactor.later(SWEEP, self._sweep)
        while len(self._silent) > HALF_OPEN:
            self._give_way(next(iter(self._silent)))

    def _give_way(self, sock: socket.socket) -> None:
        self._read(sock)  # its hello may have come, and this thread was busy with others
        if sock in self._silent:
            self._complain("too many connections that say nothing")
            self._drop(sock)

    def _read(self, sock: socket.socket) -> None:
        room = self._silent if sock in self._silent else self._proving
        server = room[sock].server
        try:
            data = sock.recv(server.missing)
            if not data:
                raise AuthError("closed without proof")
            reply = server.feed(data)
            if room is self._silent and server.claim is not None:
                self._greet(sock, server)
            if reply and sock.send(reply) != len(reply):  # 64 bytes always fit into an empty socket
                raise AuthError("does not read")
        except BlockingIOError:
            return
        except OSError as why:  # AuthError is one
            if isinstance(why, AuthError) and why.reply and self._answers > 0:
                self._answers -= 1
                with contextlib.suppress(OSError):
                    sock.send(why.reply)
            self._complain(str(why))
            self._drop(sock)
            return
        if server.done:
            del self._proving[sock]
            self._reactor.remove(sock)
            assert server.hello is not None
            self._on_peer(Connection.of(sock, server), server.hello)

    def _greet(self, sock: socket.socket, server: ServerSide) -> None:
        """The hello was made with the key.  One that was overheard and is repeated takes no second place."""
        if any(each.server.nonce == server.nonce for each in self._proving.values()):
            raise AuthError("this hello was sent before, by another connection: a replay")
        self._proving[sock] = self._silent.pop(sock)
        if not self._inode:
            wish(sock, socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _sweep(self) -> None:
        """Close those that have not proven themselves in time."""
        self._answers = ANSWERS
        latest = time.monotonic() - ATTEMPT
        for sock, waiting in [*self._silent.items(), *self._proving.items()]:
            if waiting.since <= latest:
                self._complain(f"no proof within {ATTEMPT:g} s")
                self._drop(sock)
        self._sweeping = bool(self._silent or self._proving)
        if self._sweeping:
            self._reactor.later(SWEEP, self._sweep)

    def _drop(self, sock: socket.socket) -> None:
        self._silent.pop(sock, None)
        self._proving.pop(sock, None)
        self._reactor.remove(sock, close=True)

    def _complain(self, why: str) -> None:
        now = time.monotonic()
        if now - self._said < 1.0:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} more like this)" if self._unsaid else ""
        log.warning("hocket: %s: closed a connection: %s%s", show(self.address), why, more)
        self._said, self._unsaid = now, 0
