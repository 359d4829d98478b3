"""Mutual proof of the job's key at the start of every connection, and how a client gets such a connection.

    client -> server   hello (magic, version, epoch, rank, purpose, job) and 32 random bytes     128 bytes
    server -> client   32 random bytes, HMAC(key, "server" | transcript)                          64 bytes
    client -> server   HMAC(key, "client" | transcript)                                           32 bytes

The transcript is everything sent before the proofs, so neither rank, purpose, job nor epoch can be altered or
replayed; the role labels stop reflection; the server proves itself first, so a client never talks on to a stranger.
Frames have a fixed size: nothing of a stranger's is parsed beyond fixed offsets.  `Client` and `Server` do no I/O.
Cost: 1.5 round trips, two HMACs a side.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import hmac
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable

from hocket.errors import ArgumentError, TransportError

Address = tuple[str, str] | tuple[str, str, int]  # ("unix", path) or ("tcp", host, port)

MAGIC = b"hocket"
VERSION = 1
HELLO = struct.Struct("!6sHII16s64s32s")  # magic, version, epoch, rank, purpose, job, nonce
NONCE, PROOF = 32, 32
ATTEMPT = 2.0  # seconds that one handshake may take; a listener closes at the same age
REFUSED = (errno.ECONNREFUSED, errno.ENOENT)  # the server is not up yet
HINTS = {
    errno.ECONNREFUSED: "nothing listens there (yet): is that rank running?",
    errno.ENOENT: "nothing listens there (yet): is that rank running, on this machine?",
    errno.EACCES: "the socket belongs to another user",
    errno.ETIMEDOUT: "no answer: wrong address, or a firewall (HOCKET_PORTS gives a range to open)",
    errno.EHOSTUNREACH: "no route: HOCKET_IFACE chooses the interface",
    errno.ENETUNREACH: "no route: HOCKET_IFACE chooses the interface",
    errno.EADDRNOTAVAIL: "that address is not one of this machine's: HOCKET_IFACE chooses the interface",
    errno.EADDRINUSE: "another process listens there: choose another port (HOCKET_PORTS)",
    errno.EMFILE: "too many open files: raise `ulimit -n`",
}


class AuthError(TransportError):
    """The other side did not prove that it holds this job's key."""


@dataclasses.dataclass(frozen=True)
class Hello:
    """What a client says it is; trusted only once the handshake is done.  A long job name is replaced by its hash."""

    rank: int
    purpose: str
    job: str
    epoch: int = 0

    def __post_init__(self) -> None:
        if len(self.purpose.encode()) > 16:
            raise ArgumentError(f"the purpose of a connection has at most 16 bytes, not {self.purpose!r}")
        if len(self.job.encode()) > 64:
            object.__setattr__(self, "job", hashlib.sha256(self.job.encode()).hexdigest())

    def pack(self, nonce: bytes) -> bytes:
        return HELLO.pack(MAGIC, VERSION, self.epoch, self.rank, self.purpose.encode(), self.job.encode(), nonce)


def unpack(frame: bytes) -> Hello:
    magic, version, epoch, rank, purpose, job, _ = HELLO.unpack(frame)
    if magic != MAGIC:
        raise AuthError("not a hocket connection")
    if version != VERSION:
        raise AuthError(f"the other side speaks handshake version {version}, this one {VERSION}: install one hocket")
    try:
        return Hello(rank, purpose.rstrip(b"\0").decode(), job.rstrip(b"\0").decode(), epoch)
    except UnicodeDecodeError:
        raise AuthError("not a hocket connection") from None


def prove(key: bytes, role: bytes, transcript: bytes) -> bytes:
    return hmac.digest(key, role + transcript, "sha256")


class _Side:
    """Collects bytes to whole frames; `missing` says how many to read, so that nobody reads past the handshake."""

    def __init__(self, key: bytes, frame: int) -> None:
        self.done = False
        self.hello: Hello | None = None
        self._key, self._frame, self._buffer = key, frame, b""

    @property
    def missing(self) -> int:
        return 0 if self.done else self._frame - len(self._buffer)

    def feed(self, data: bytes) -> bytes:
        """Take what arrived; returns what to send.  Raises AuthError: close the connection."""
        if len(data) > self.missing:
            raise AuthError("more bytes than the handshake has")
        self._buffer += data
        if self.missing or self.done:
            return b""
        frame, self._buffer = self._buffer, b""
        return self._frame_in(frame)

    def _frame_in(self, frame: bytes) -> bytes:
        raise NotImplementedError


class Client(_Side):
    """The side that connects.  Send `start` first."""

    def __init__(self, key: bytes, hello: Hello) -> None:
        super().__init__(key, NONCE + PROOF)
        self.hello = hello
        self.start = hello.pack(secrets.token_bytes(NONCE))

    def _frame_in(self, frame: bytes) -> bytes:
        transcript = self.start + frame[:NONCE]
        if not hmac.compare_digest(frame[NONCE:], prove(self._key, b"server", transcript)):
            raise AuthError("the server does not hold this job's key: another job's, or HOCKET_SECRET differs")
        self.done = True
        return prove(self._key, b"client", transcript)


class Server(_Side):
    """The side that was connected to.  `hello` is set once `done`."""

    def __init__(self, key: bytes) -> None:
        super().__init__(key, HELLO.size)
        self._claim: Hello | None = None
        self._transcript = b""

    def _frame_in(self, frame: bytes) -> bytes:
        if self._claim is None:
            self._claim = unpack(frame)
            nonce = secrets.token_bytes(NONCE)
            self._transcript, self._frame = frame + nonce, PROOF
            return nonce + prove(self._key, b"server", self._transcript)
        if not hmac.compare_digest(frame, prove(self._key, b"client", self._transcript)):
            raise AuthError("the client does not hold this job's key")
        self.hello, self.done = self._claim, True
        return b""


# --- the client's connection ---------------------------------------------------------------------------------------


def show(address: Address) -> str:
    """The address as a person writes it: unix:/path, tcp:host:port."""
    host = f"[{address[1]}]" if ":" in address[1] and address[0] == "tcp" else address[1]
    return f"{address[0]}:{host}" + "".join(f":{port}" for port in address[2:])


def connect(
    address: Address, key: bytes | None, hello: Hello, timeout: float, look: Callable[[], object] = lambda: None
) -> socket.socket:
    """A blocking, authenticated connection to the server at `address`, waiting for a server that is not up yet.

    An AuthError is raised at once; a refused or dropped connection is tried again until `timeout` seconds are over.
    `look` is called between attempts, and may raise to end them.
    """
    deadline, pause = time.monotonic() + timeout, 0.005
    while True:
        left = deadline - time.monotonic()
        try:
            return dial(address, key, hello, max(0.01, min(left, ATTEMPT)))
        except AuthError:
            raise
        except TransportError as why:
            if left <= pause:
                raise TransportError(f"{why}; tried for {timeout:g} s") from None
        look()
        time.sleep(pause)
        pause = min(2 * pause, 0.1)


def dial(address: Address, key: bytes | None, hello: Hello, timeout: float) -> socket.socket:
    """One attempt to connect and prove, in `timeout` seconds."""
    deadline = time.monotonic() + timeout
    sock = _open(address, deadline)
    try:
        if sock.family == socket.AF_UNIX and peer_uid(sock) != os.geteuid():
            raise AuthError(f"{show(address)} is served by another user (uid {peer_uid(sock)})")
        _introduce(sock, Client(key or b"", hello), deadline)
        sock.settimeout(None)
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
    return sock


def failure(ends: str, why: OSError, what: str) -> TransportError:
    """The TransportError for a system's refusal: which ends, errno, and a hint."""
    if isinstance(why, TimeoutError) and why.errno is None:
        why = TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
    number = why.errno or 0
    name = errno.errorcode.get(number, type(why).__name__)
    hint = f"; {HINTS[number]}" if number in HINTS else ""
    return TransportError(f"{ends}: {what}: {why.strerror or why} ({name}){hint}")


def peer_uid(sock: socket.socket) -> int:
    """The user at the other end of a unix socket, as the kernel knows it."""
    return int(struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1])


def resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    """The IPv4 and IPv6 addresses of a host, in the system's order."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as why:
        raise TransportError(f"tcp:{host}:{port}: the host name is not known here ({why})") from None
    return [(family, address) for family, _, _, _, address in found]  # type: ignore[misc]


def _open(address: Address, deadline: float) -> socket.socket:
    if len(address) == 2:
        targets: list[tuple[socket.AddressFamily, object]] = [(socket.AF_UNIX, address[1])]
    else:
        targets = list(resolve(address[1], address[2]))
    failed = TransportError(f"{show(address)}: no address")
    for family, target in targets:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.settimeout(max(0.01, deadline - time.monotonic()))
            sock.connect(target)  # type: ignore[arg-type]
            if family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
        except OSError as why:
            failed = failure(_ends(sock, address), why, "cannot connect")
            sock.close()
        except BaseException:
            sock.close()
            raise
    raise failed


def _introduce(sock: socket.socket, client: Client, deadline: float) -> None:
    sock.sendall(client.start)
    while not client.done:
        sock.settimeout(max(0.01, deadline - time.monotonic()))
        data = sock.recv(client.missing)
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
