"""The addresses that processes listen at: a path in a private directory, or a port."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import random
import re
import shlex
import socket
import stat
import time
from collections.abc import Iterable
from typing import Any

from hocket.control.dial import failure, resolve, show
from hocket.control.handshake import Address
from hocket.errors import ArgumentError, TransportError
from hocket.system.machine import numeric, wish

BindAddress = tuple[str, str] | tuple[str, str, int] | tuple[str, str, Iterable[int]]
"""To listen at; of TCP with a port, 0 (the system chooses), or candidates."""
BACKLOG = 1024  # in the kernel: room for the ranks of a large job at once, yet a flood's queue is short
ROUNDS = 10  # through a range of ports; ranks that start together may take one from each other
PATH_LIMIT = 107  # bytes in sockaddr_un


def private_directory(path: str) -> None:
    """Make `path` a directory that only this user can enter, or refuse.  A link or a foreign owner is an attack."""
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        status = os.lstat(path)
    except OSError as why:
        raise TransportError(
            f"{path} cannot be made ({why.strerror}): set TMPDIR to a directory that you can write in"
        ) from None
    if is_private(path):
        return
    ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    mode = stat.S_IMODE(status.st_mode)
    what = "a directory" if stat.S_ISDIR(status.st_mode) else "a link" if stat.S_ISLNK(status.st_mode) else "a file"
    remove = "remove it, or set TMPDIR (or XDG_RUNTIME_DIR) to a directory of your own"
    mend = f"`chmod 700 {shlex.quote(path)}`" if ours else remove
    raise TransportError(
        f"{path} must be a directory of user {os.geteuid()} with mode 0700, not a link; it is {what} of user "
        f"{status.st_uid} with mode {mode:04o}: {mend}"
    )


def is_private(path: str) -> bool:
    """Is it a directory that only this user can enter?"""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _listen(address: BindAddress) -> tuple[socket.socket, Address]:
    if address[0] == "unix":
        return _listen_unix(address[1])
    host, port = address[1], address[2]  # type: ignore[misc]
    family, place = resolve(host, 0)[0]
    ip = ipaddress.ip_address(place[0].partition("%")[0])
    inner = getattr(ip, "ipv4_mapped", None)
    if inner is not None:  # ::ffff:10.0.0.1 is an IPv4 address in IPv6's clothes
        family, place, ip = socket.AF_INET, (str(inner), 0), inner
    if ip.is_unspecified:
        raise ArgumentError("a listener binds one interface, never all: give its address (HOCKET_IFACE)")
    failed = TransportError(f"tcp:{host}: no port to listen on was given")
    ports = [port] if isinstance(port, int) else list(port)
    for attempt in range(ROUNDS):
        if attempt:
            time.sleep(random.uniform(0.001, 0.01))
        for number in ports:
            try:
                return _listen_at(family, (place[0], number, *place[2:]))
            except OSError as why:
                failed = failure(show(("tcp", numeric(place), number)), why, "cannot listen")
                failed.errno = why.errno
        if failed.errno != errno.EADDRINUSE or len(ports) == 1:
            break
    raise failed


def _listen_at(family: int, place: Any) -> tuple[socket.socket, Address]:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        wish(sock, socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(place)
        sock.listen(BACKLOG)  # where two have bound one port at once, this fails for one of them, or for both
        return sock, ("tcp", numeric(place), sock.getsockname()[1])
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


def remove_dead(path: str, folder: str) -> None:
    """Remove a dead process's socket that somebody else names: one in this user's folder of sockets, no other."""
    if os.path.dirname(path) == folder and re.fullmatch("[0-9a-f]{16}", os.path.basename(path)) and _stale(path):
        with contextlib.suppress(OSError):
            os.unlink(path)


def _stale(path: str) -> bool:
    """Is this the socket of a dead process?  (A living one accepts, or has a full queue; a file refuses, too.)"""
    with contextlib.suppress(OSError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(path) == errno.ECONNREFUSED
