"""Mutual proof of the job's key at the start of every connection, and how a client gets such a connection.

    client -> server   hello (magic, version, epoch, rank; whom and where it dialled; purpose, job), 32 random bytes,
                       HMAC(key, "hello" | all that)                                             182 bytes
    server -> client   32 random bytes, HMAC(key, "server" | transcript)                          64 bytes
    client -> server   HMAC(key, "client" | transcript)                                           32 bytes

The transcript is everything sent before, so nothing of a hello can be altered or replayed; the role labels stop
reflection.  The hello's own HMAC lets a server drop strangers without keeping anything of them, and tell them nothing
by which a secret could be guessed.  The hello says which rank (or the coordinator) was dialled at which numeric address
and port.  A server that is another one, or has another address or port, refuses and says so.  So a handshake that is
relayed from another port lets nobody in; address translation is refused too, as connections must go straight.
Both ends derive the connection's own key, HMAC(key, "connection" | transcript).
Frames have a fixed size: nothing of a stranger's is parsed beyond fixed offsets.  The two sides do no I/O.
Cost: 1.5 round trips, four HMACs a side.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import ipaddress
import secrets
import socket
import struct

from hocket.errors import ArgumentError, TransportError

Address = tuple[str, str] | tuple[str, str, int]  # ("unix", path) or ("tcp", host, port)
Where = tuple[bytes, int]  # a numeric address in 16 bytes, and a port

MAGIC = b"hocket"
VERSION = 5  # 4: control connections go on over other ones (protocol/kept.py); 5: a message has another name
BEGIN = struct.Struct("!6sH")  # magic, version
HELLO = struct.Struct("!6sHIII16sH16s64s32s")  # magic, version, epoch, rank, target, address, port, purpose, job, nonce
NONCE, PROOF = 32, 32
START = HELLO.size + PROOF
COORDINATOR = 0xFFFFFFFF  # the target that is no rank, but where the ranks meet
NOWHERE: Where = (bytes(16), 0)  # of a Unix socket: the kernel says who serves it
ATTEMPT = 2.0  # seconds that one handshake may take; a listener closes at the same age
REFUSALS = {
    b"elsewhere": "the server listens at another address or port than this one: somebody relays connections to it, or "
    "they go through address translation (NAT, a forwarded port), which is refused: use an address of rank 0's own",
    b"another": "the server is another rank than was asked for",
    b"epoch": "the server is in another session of this job: a process of a former start that still runs?",
}
"""Why a server refuses a client that holds the key, by the label of the HMAC that tells it."""
STRANGER = b"hocket: a hello of another key".ljust(NONCE + PROOF, b"\0")
"""A server's answer to a client without the key: a rank whose secret differs learns it at once."""


class AuthError(TransportError):
    """The other side did not prove that it holds this job's key.  `reply`: what may still be said to it."""

    reply = b""


@dataclasses.dataclass(frozen=True)
class Hello:
    """A client's claim who it is, and whom it means; trusted only once the handshake is done.

    `epoch` tells a session from a former one of the same job (0: it has none yet).  A long job name is replaced by its
    hash.
    """

    rank: int
    purpose: str
    job: str
    epoch: int = 0
    target: int = COORDINATOR

    def __post_init__(self) -> None:
        if len(self.purpose.encode()) > 16:
            raise ArgumentError(f"the purpose of a connection has at most 16 bytes, not {self.purpose!r}")
        if len(self.job.encode()) > 64:
            object.__setattr__(self, "job", hashlib.sha256(self.job.encode()).hexdigest())

    def pack(self, nonce: bytes, where: Where = NOWHERE) -> bytes:
        names = self.purpose.encode(), self.job.encode()
        return HELLO.pack(MAGIC, VERSION, self.epoch, self.rank, self.target, *where, *names, nonce)


def check(frame: bytes) -> None:
    """Is this a hello of our version?"""
    magic, version = BEGIN.unpack_from(frame)
    if magic != MAGIC:
        raise AuthError("not a hocket connection")
    if version != VERSION:
        raise AuthError(
            f"the other side speaks handshake version {version}, this one {VERSION}: install the same hocket on all "
            "hosts"
        )


def unpack(frame: bytes) -> tuple[Hello, Where, bytes]:
    """The hello, where it was sent to, and its nonce."""
    _, _, epoch, rank, target, address, port, purpose, job, nonce = HELLO.unpack(frame)
    try:
        hello = Hello(rank, purpose.rstrip(b"\0").decode(), job.rstrip(b"\0").decode(), epoch, target)
    except UnicodeDecodeError:
        raise AuthError("not a hocket connection") from None
    return hello, (address, port), nonce


def prove(key: bytes, label: bytes, transcript: bytes) -> bytes:
    return hmac.digest(key, label + transcript, "sha256")


def where(name: object) -> Where:
    """A socket's name, as both ends of a connection see it."""
    if not isinstance(name, tuple):
        return NOWHERE
    ip = ipaddress.ip_address(str(name[0]).partition("%")[0])
    packed = ip.packed if ip.version == 6 else ipaddress.ip_address(f"::ffff:{ip}").packed
    return packed, int(name[1])


class _Side:
    """Collects bytes to whole frames; `missing` says how many to read, so that nobody reads past the handshake.

    Once `done`, `session` is the connection's own key; empty if `key` is, where the user id was the proof.
    """

    def __init__(self, key: bytes, frame: int) -> None:
        self.done = False
        self.hello: Hello | None = None
        self.session = b""
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

    def _finish(self, transcript: bytes) -> None:
        self.done = True
        if self._key:
            self.session = prove(self._key, b"connection", transcript)


class ClientSide(_Side):
    """The side that connects to a server at `place`.  Send `start` first."""

    def __init__(self, key: bytes, hello: Hello, place: Where = NOWHERE) -> None:
        super().__init__(key, NONCE + PROOF)
        self.hello = hello
        greeting = hello.pack(secrets.token_bytes(NONCE), place)
        self.start = greeting + prove(key, b"hello", greeting)

    def _frame_in(self, frame: bytes) -> bytes:
        transcript, proof = self.start + frame[:NONCE], frame[NONCE:]
        if not hmac.compare_digest(proof, prove(self._key, b"server", transcript)):
            for label, text in REFUSALS.items():
                if hmac.compare_digest(proof, prove(self._key, label, transcript)):
                    raise AuthError(text)
            raise AuthError("the server does not hold this job's key: it is of another job, or HOCKET_SECRET differs")
        self._finish(transcript)
        return prove(self._key, b"client", transcript)


class ServerSide(_Side):
    """The side that was connected to: `target` in session `epoch`, at `place`.

    `claim` is the client's hello once its HMAC has been checked, and `nonce` its nonce; `hello` is set once `done`.
    """

    def __init__(self, key: bytes, target: int = COORDINATOR, epoch: int = 0, place: Where = NOWHERE) -> None:
        super().__init__(key, START)
        self.claim: Hello | None = None
        self.nonce = b""
        self._me = target, epoch, place
        self._transcript = b""

    def _frame_in(self, frame: bytes) -> bytes:
        if self.claim is None:
            return self._greeted(frame)
        if not hmac.compare_digest(frame, prove(self._key, b"client", self._transcript)):
            raise AuthError("the client does not hold this job's key")
        self.hello = self.claim
        self._finish(self._transcript)
        return b""

    def _greeted(self, frame: bytes) -> bytes:
        greeting, proof = frame[: HELLO.size], frame[HELLO.size :]
        check(greeting)
        if not hmac.compare_digest(proof, prove(self._key, b"hello", greeting)):
            stranger = AuthError("the client does not hold this job's key")
            stranger.reply = STRANGER
            raise stranger
        claim, place, self.nonce = unpack(greeting)
        nonce = secrets.token_bytes(NONCE)
        transcript = frame + nonce
        target, epoch, here = self._me
        label = b"elsewhere" if place != here else b"another" if claim.target != target else b"epoch"
        if (claim.target, claim.epoch, place) != (target, epoch, here):
            refused = AuthError(f"rank {claim.rank} was refused: {REFUSALS[label]}")
            refused.reply = nonce + prove(self._key, label, transcript)
            raise refused
        self.claim, self._transcript, self._frame = claim, transcript, PROOF
        return nonce + prove(self._key, b"server", transcript)


class Connection(socket.socket):
    """A socket whose ends have proven themselves, with its own `key` (_Side.session), which only they know."""

    hello: Hello
    key: bytes
    dialled: bool
    """Is this the client's end?"""

    @classmethod
    def of(cls, sock: socket.socket, side: _Side) -> Connection:
        """Takes the descriptor over from `sock`."""
        assert side.hello is not None
        timeout = sock.gettimeout()
        connection = cls(sock.family, sock.type, sock.proto, sock.detach())
        connection.settimeout(timeout)
        connection.hello, connection.key, connection.dialled = side.hello, side.session, isinstance(side, ClientSide)
        return connection
