"""A client's way to a proven connection: the address is tried until somebody answers, then both prove themselves."""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Callable

from hocket.control.handshake import ATTEMPT, Address, AuthError, ClientSide, Connection, Hello, where
from hocket.errors import TransportError
from hocket.system.machine import wish

SocketAddress = tuple[str, int] | tuple[str, int, int, int]
"""A socket's name; IPv6's have two numbers more."""
LOOK = 0.1  # seconds between two looks at whether to go on
ANSWER = 0.25  # seconds for a system to take a connection, before it is asked anew; doubled each time
OURS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)  # what this host lacks: no use in waiting
REFUSED = (errno.ECONNREFUSED, errno.ENOENT)  # the server is not up yet
HINTS = {
    errno.ECONNREFUSED: "nothing listens there (yet): is that rank running?",
    errno.ENOENT: "nothing listens there (yet): is that rank running, on this machine?",
    errno.EACCES: "the socket belongs to another user",
    errno.ETIMEDOUT: "no answer: wrong address, or a firewall (HOCKET_PORTS gives a range to open)",
    errno.EHOSTUNREACH: "no route: HOCKET_IFACE chooses the interface",
    errno.ENETUNREACH: "no route: HOCKET_IFACE chooses the interface",
    errno.EADDRNOTAVAIL: "that address is not one of this machine's: HOCKET_IFACE chooses the interface, "
    "and MASTER_ADDR must be an address of rank 0's host",
    errno.EADDRINUSE: "another process listens there: choose another port (HOCKET_PORTS)",
    errno.EMFILE: "too many open files: raise `ulimit -n`",
}


def show(address: Address) -> str:
    """The address as a person writes it: unix:/path, tcp:host:port."""
    host = f"[{address[1]}]" if ":" in address[1] and address[0] == "tcp" else address[1]
    return f"{address[0]}:{host}" + "".join(f":{port}" for port in address[2:])


def connect(
    address: Address, key: bytes | None, hello: Hello, timeout: float, look: Callable[[], object] = lambda: None,
    source: str = "",
) -> Connection:  # fmt: skip
    """A blocking, authenticated connection to the server at `address`, waiting for a server that is not up yet.

    An AuthError is raised at once; a refused or dropped connection is tried again until `timeout` seconds are over.
    `look` is called now and then, and may raise to end the wait; not an OSError.  source: the address of the interface
    that it goes out by; "": the system chooses.
    """
    deadline, pause = time.monotonic() + timeout, 0.005
    while True:
        left = deadline - time.monotonic()
        try:
            return dial(address, key, hello, max(0.01, min(left, ATTEMPT)), look, source)
        except AuthError:
            raise
        except TransportError as why:
            if why.errno in OURS:
                raise
            if left <= pause:
                raise TransportError(f"{why}; tried for {timeout:g} s") from None
        look()
        time.sleep(pause)
        pause = min(2 * pause, 0.1)


def dial(
    address: Address, key: bytes | None, hello: Hello, timeout: float, look: Callable[[], object] = lambda: None,
    source: str = "",
) -> Connection:  # fmt: skip
    """One attempt to connect and prove, in `timeout` seconds."""
    deadline = time.monotonic() + timeout
    sock = _open(address, deadline, look, source)
    try:
        if sock.family == socket.AF_UNIX and peer_uid(sock) != os.geteuid():
            raise AuthError(f"{show(address)} is served by another user (uid {peer_uid(sock)})")
        client = ClientSide(key or b"", hello, where(sock.getpeername()))
        _introduce(sock, client, deadline, look)
        sock.settimeout(None)
        return Connection.of(sock, client)
    except AuthError as why:
        text = f"{_ends(sock, address)}: {why}"
        sock.close()
        raise AuthError(text) from None
    except OSError as why:
        failed = failure(_ends(sock, address), why, "the handshake failed")
        sock.close()
        raise failed from None
    except BaseException:
        sock.close()
        raise


def failure(ends: str, why: OSError, what: str) -> TransportError:
    """The TransportError for a system's refusal: which ends, errno, and a hint."""
    if isinstance(why, TimeoutError) and why.errno is None:
        why = TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
    number = why.errno or 0
    name = errno.errorcode.get(number, type(why).__name__)
    hint = f"; {HINTS[number]}" if number in HINTS else ""
    error = TransportError(f"{ends}: {what}: {why.strerror or why} ({name}){hint}")
    error.errno = number
    return error


def peer_uid(sock: socket.socket) -> int:
    """The user at the other end of a unix socket, as the kernel knows it."""
    return int(struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1])


def resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, SocketAddress]]:
    """The IPv4 and IPv6 addresses of a host, in the system's order."""
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as why:
        raise TransportError(f"tcp:{host}:{port}: the host name is not known here ({why})") from None
    return [(family, address) for family, _, _, _, address in entries]  # type: ignore[misc]


def _open(address: Address, deadline: float, look: Callable[[], object], source: str) -> socket.socket:
    """A connected socket.  A system too busy to take a connection drops it without a word, and the kernel asks again
    only after a second: this asks sooner."""
    patience = ANSWER
    while True:
        until = min(deadline, time.monotonic() + patience)
        try:
            return _open_once(address, until, source)
        except TransportError as why:
            if until == deadline or why.errno != errno.ETIMEDOUT:
                raise
        look()
        patience *= 2


def _open_once(address: Address, deadline: float, source: str) -> socket.socket:
    if len(address) == 2:
        targets: list[tuple[socket.AddressFamily, object]] = [(socket.AF_UNIX, address[1])]
    else:
        targets = list(resolve(address[1], address[2]))
    failed = TransportError(f"{show(address)}: the name has no address")
    for family, target in targets:
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as why:
            raise failure(show(address), why, "cannot connect") from None
        try:
            sock.settimeout(max(0.01, deadline - time.monotonic()))
            if source:
                sock.bind((source, 0))
            sock.connect(target)  # type: ignore[arg-type]
            if family != socket.AF_UNIX:
                wish(sock, socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
        except OSError as why:
            failed = failure(_ends(sock, address), why, "cannot connect")
            sock.close()
        except BaseException:
            sock.close()
            raise
    raise failed


def _introduce(sock: socket.socket, client: ClientSide, deadline: float, look: Callable[[], object]) -> None:
    """A system takes connections for a process that is stopped, so the proof may never come."""
    sock.sendall(client.start)
    while not client.done:
        left = deadline - time.monotonic()
        sock.settimeout(max(0.01, min(left, LOOK)))
        try:
            data = sock.recv(client.missing)
        except TimeoutError:
            if left <= LOOK:
                raise
            look()
            continue
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "closed by the other side")
        sock.sendall(client.feed(data))


def _ends(sock: socket.socket, address: Address) -> str:
    """Both ends of a connection, for an error's text."""
    if address[0] == "unix":
        return f"this process (pid {os.getpid()}) -> {show(address)}"
    try:
        name = sock.getsockname()
        local = f"tcp:{name[0]}:{name[1]}"
    except OSError:
        local = "tcp"
    return f"{local} -> {show(address)}"
