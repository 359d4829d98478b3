"""A socket that others connect to: accepts, has them prove themselves, hands the proven ones on.

A stranger costs one descriptor for at most 2 seconds and is told nothing: junk, port scans and connections that
never speak are closed, with at most one line of log a second.  Runs on the reactor, never blocks.  Knows nothing of
what is said on a connection once it is proven.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import random
import shlex
import socket
import stat
import time
from collections.abc import Callable, Iterable

from hocket.errors import ArgumentError, TransportError
from hocket.transports.handshake import ATTEMPT, Address, AuthError, Hello, Server, failure, peer_uid, resolve, show
from hocket.transports.reactor import Reactor

log = logging.getLogger("hocket.transports")
HALF_OPEN = 64  # connections that have not proven themselves; the oldest gives way
BACKLOG = 256
ROUNDS = 10  # through a range of ports; ranks that start together may take one from each other
PATH_LIMIT = 107  # bytes in sockaddr_un
Place = tuple[str, str] | tuple[str, str, int] | tuple[str, str, Iterable[int]]


class Listener:
    """Accepts at `address`; calls `on_peer(sock, hello)` on the reactor's thread with a non-blocking, proven socket.

    address: ("unix", path), or ("tcp", host, port) where port is 0 (the system chooses) or candidates of which the
    first free one is taken.  key None: proof is the user id alone, so unix only.  `address` holds what was bound.
    """

    def __init__(
        self,
        reactor: Reactor,
        address: Place,
        key: bytes | None,
        on_peer: Callable[[socket.socket, Hello], object],
    ) -> None:
        if key is None and address[0] != "unix":
            raise ArgumentError("a TCP listener needs a key: set HOCKET_SECRET or HOCKET_SECRET_FILE")
        self._reactor, self._key, self._on_peer = reactor, key or b"", on_peer
        self._waiting: dict[socket.socket, Server] = {}  # half open, oldest first
        self._said, self._unsaid = 0.0, 0
        self._closed = False
        self._sock, self.address = _listen(address)
        self._inode = os.lstat(self.address[1]).st_ino if self.address[0] == "unix" else 0
        self._sock.setblocking(False)
        reactor.add(self._sock, self._accept)

    def close(self) -> None:
        """Stop listening, drop the half open, remove the path.  Those handed on live on."""
        if self._closed or self._reactor.dead:  # dead: also the copy in a forked child, whose path it is not
            return
        self._closed = True
        if self.address[0] == "unix":
            with contextlib.suppress(OSError):
                if os.lstat(self.address[1]).st_ino == self._inode:
                    os.unlink(self.address[1])
        self._reactor.remove(self._sock, close=True)
        self._reactor.soon(self._drop_all)

    def _drop_all(self) -> None:
        for sock in list(self._waiting):
            self._drop(sock)

    def _accept(self) -> None:
        for _ in range(HALF_OPEN):  # then let the others have a turn
            try:
                sock, _ = self._sock.accept()
            except BlockingIOError:
                return
            except OSError as why:
                if why.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                    self._pause(why)
                    return
                continue  # the client went away between its call and ours
            self._take(sock)

    def _pause(self, why: OSError) -> None:
        """Out of descriptors: readiness would repeat for ever, so look away for a moment."""
        self._complain(f"cannot accept: {why.strerror}")
        self._drop_all()
        self._reactor.remove(self._sock)
        self._reactor.later(0.1, lambda: None if self._closed else self._reactor.add(self._sock, self._accept))

    def _take(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        if sock.family == socket.AF_UNIX:
            if peer_uid(sock) != os.geteuid():
                self._complain(f"refused user id {peer_uid(sock)}")
                sock.close()
                return
        else:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self._waiting) >= HALF_OPEN:
            self._complain("too many connections that did not prove themselves")
            self._drop(next(iter(self._waiting)))
        self._waiting[sock] = Server(self._key)
        self._reactor.add(sock, lambda: self._read(sock))
        self._reactor.later(ATTEMPT, lambda: self._expire(sock))

    def _read(self, sock: socket.socket) -> None:
        server = self._waiting[sock]
        try:
            data = sock.recv(server.missing)
            if not data:
                raise AuthError("closed without proof")
            reply = server.feed(data)
            if reply and sock.send(reply) != len(reply):  # 64 bytes always fit into an empty socket
                raise AuthError("does not read")
        except BlockingIOError:
            return
        except OSError as why:  # AuthError is one
            self._complain(str(why))
            self._drop(sock)
            return
        if server.done:
            del self._waiting[sock]
            self._reactor.remove(sock)
            assert server.hello is not None
            self._on_peer(sock, server.hello)

    def _expire(self, sock: socket.socket) -> None:
        if sock in self._waiting:
            self._complain(f"no proof within {ATTEMPT:g} s")
            self._drop(sock)

    def _drop(self, sock: socket.socket) -> None:
        del self._waiting[sock]
        self._reactor.remove(sock, close=True)

    def _complain(self, why: str) -> None:
        now = time.monotonic()
        if now - self._said < 1.0:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} more like this)" if self._unsaid else ""
        log.warning("hocket: %s: closed a connection: %s%s", show(self.address), why, more)
        self._said, self._unsaid = now, 0


def private_directory(path: str) -> None:
    """Make `path` a directory that only this user can enter, or refuse.  A link or a foreign owner is an attack."""
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        found = os.lstat(path)
    except OSError as why:
        raise TransportError(
            f"{path} cannot be made ({why.strerror}): set TMPDIR to a directory that you can write in"
        ) from None
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if ours and not found.st_mode & 0o077:
        return
    mode = stat.S_IMODE(found.st_mode)
    what = "a directory" if stat.S_ISDIR(found.st_mode) else "a link" if stat.S_ISLNK(found.st_mode) else "a file"
    mend = f"`chmod 700 {shlex.quote(path)}`" if ours else "remove it, or set TMPDIR to a directory of your own"
    raise TransportError(
        f"{path} must be a directory of user {os.geteuid()} with mode 0700, not a link; it is {what} of user "
        f"{found.st_uid} with mode {mode:04o}: {mend}"
    )


def _listen(address: Place) -> tuple[socket.socket, Address]:
    if address[0] == "unix":
        return _listen_unix(address[1])
    host, port = address[1], address[2]  # type: ignore[misc]
    family, (numeric, *_) = resolve(host, 0)[0]
    if numeric in ("0.0.0.0", "::", ""):
        raise ArgumentError("a listener binds one interface, never all: give its address (HOCKET_IFACE)")
    failed = TransportError(f"tcp:{host}: no port to listen on was given")
    ports = [port] if isinstance(port, int) else list(port)
    for attempt in range(ROUNDS):
        if attempt:
            time.sleep(random.uniform(0.001, 0.01))
        for number in ports:
            try:
                return _listen_at(family, numeric, number)
            except OSError as why:
                failed = failure(show(("tcp", numeric, number)), why, "cannot listen")
                failed.errno = why.errno
        if failed.errno != errno.EADDRINUSE or len(ports) == 1:
            break
    raise failed


def _listen_at(family: int, host: str, port: int) -> tuple[socket.socket, Address]:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(BACKLOG)  # where two have bound one port at once, this tells who has it: one of them, or neither
        return sock, ("tcp", host, sock.getsockname()[1])
    except OSError:
        sock.close()
        raise


def _listen_unix(path: str) -> tuple[socket.socket, Address]:
    if len(os.fsencode(path)) > PATH_LIMIT:
        raise TransportError(f"unix:{path}: the path is longer than {PATH_LIMIT} bytes: set TMPDIR to a shorter one")
    private_directory(os.path.dirname(path))
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(sock.fileno(), 0o600)  # before bind: the path never exists with wider rights
        if _stale(path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        sock.bind(path)
        sock.listen(BACKLOG)
    except OSError as why:
        sock.close()
        failed = failure(f"unix:{path}", why, "cannot listen")
        failed.errno = why.errno
        raise failed from None
    return sock, ("unix", path)


def _stale(path: str) -> bool:
    """Is this the socket of a dead process?  (A living one accepts, or has a full queue.)"""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(path) == errno.ECONNREFUSED
