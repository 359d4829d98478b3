"""Which connections are encrypted, with which key, and how a proven connection becomes an encrypted one.

HOCKET_ENCRYPT: every TCP connection of the job, of data and control, is TLS 1.3 (tls.h), right behind the handshake in
which both ends have proven that they hold the job's key.  Its pre-shared key is made of that handshake's key, the
connection's purpose and its two ranks, so it fits no other connection.  Certificates (HOCKET_TLS_CERT) take the key's
place in TLS; the key is then proven inside, where the proof fits this one connection.  A rank that cannot encrypt is
refused.  Unix sockets and shared memory are inside a host, and stay as they are.

Cost: two round trips and 0.3 ms of each side's CPU a connection, then `python -m hocket.bench.encryption`.
"""

from __future__ import annotations

import hmac
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence

from hocket.control.handshake import ATTEMPT, AuthError
from hocket.control.reactor import Reactor
from hocket.errors import ArgumentError, TransportError
from hocket.system import tls

MARK = "tls:"
"""The purpose of an encrypted connection begins so, which tells a plain one from it."""
ENCRYPTS = ("shm", "tcp")
"""Transports that encrypt, or whose bytes do not leave the host."""
DIFFERS = "HOCKET_ENCRYPT must be the same on every rank, and HOCKET_TLS_CERT set on all or on none"
FILES = ("HOCKET_TLS_CERT", "HOCKET_TLS_KEY", "HOCKET_TLS_CA")
certificates: tls.Certificates | None = None
"""This process's certificates, if the ranks prove themselves by certificates."""


class SilentEnd(AuthError):
    """The other side ended the connection and said nothing: it does not encrypt, or it (or this side) was too slow."""


def missing() -> str | None:
    """Why this machine cannot encrypt, or None."""
    reason = tls.missing()
    if reason is None:
        return None
    return f"OpenSSL 3 is needed to encrypt, and cannot be used ({reason}): install libssl3 (openssl-libs)"


def refused(name: str) -> str:
    """Why a transport is not used."""
    return (
        f"it does not encrypt, and HOCKET_ENCRYPT is set: HOCKET_PLAIN={name} uses it all the same (when the network "
        "itself is encrypted, by WireGuard or IPsec)"
    )


def cipher(theirs: object) -> int:
    """The cipher for a connection to a rank whose fastest is `theirs`: AES only where both processors have it."""
    return tls.AES if tls.FASTEST == theirs == tls.AES else tls.CHACHA


def connection_key(key: bytes, purpose: str, client: int, server: int) -> bytes:
    """The pre-shared key of a connection that rank `client` opens to `server`, from what its handshake gave (`key`)."""
    return hmac.digest(key, f"hocket tls 1\0{purpose}\0{client}\0{server}".encode(), "sha384")


def use(paths: Sequence[str]) -> None:
    """Take the certificate, its key and the authorities' from these PEM files; none: the job's key is proof enough."""
    global certificates
    certificates = _read(paths) if any(paths) else None


def _read(paths: Sequence[str]) -> tls.Certificates:
    try:
        return tls.Certificates(*paths)
    except ValueError as why:
        which, reason = why.args
        need = ("a certificate, and those between it and the CA's", f"the key of {FILES[0]}, without a passphrase",
                "the certificates of the CA that all ranks' come from")[which]  # fmt: skip
        raise ArgumentError(
            f"{FILES[which]} is {paths[which]!r}, which cannot be used ({reason}): a PEM file is needed, with {need}"
        ) from None


def secure(
    sock: socket.socket, key: bytes, timeout: float = ATTEMPT, look: Callable[[], object] = lambda: None,
    cipher: int | None = None,
) -> tls.Tls:  # fmt: skip
    """Encrypt the dialling end of a connection: it waits for the other side's reactor, and its cipher is taken.

    Raises AuthError (the other side does not encrypt, or not with this key), SilentEnd (another attempt may do),
    TransportError (it does not answer).
    """
    deadline = time.monotonic() + timeout
    end = tls.Tls(sock, key, False, certificates, tls.FASTEST if cipher is None else cipher)
    steps = _steps(end, key, server=False)
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    while True:
        try:
            waits = next(steps, None)
        except OSError as why:
            raise (AuthError if isinstance(why, TransportError) else SilentEnd)(_failed(why)) from None
        if waits is None:
            return end
        left = deadline - time.monotonic()
        if left <= 0:
            raise TransportError(f"no encrypted connection within {timeout:g} s: the other side does not answer")
        poll.modify(sock, select.POLLIN if waits == "read" else select.POLLOUT)
        poll.poll(min(left, 0.1) * 1000)
        look()


def _steps(end: tls.Tls, key: bytes, server: bool) -> Iterator[str]:
    """The TLS handshake, then each end's proof, inside it, that it knows the job's key: the dialling side's first.

    Yields what the socket must be ready for ("read", "write").  With certificates these proofs are the key's only use.
    Somebody in between with a certificate of this authority has two connections, and no proof fits both.
    """
    while waits := end.shake():
        yield waits
    bound = end.binding()
    proofs = [hmac.digest(key, side + bound, "sha256") for side in (b"client", b"server")]
    if not server:
        try:
            end.write(proofs[0])
        except TransportError:
            raise
        except OSError:
            pass  # the other side has ended the connection; what it said last tells why
    while True:
        try:
            proof = end.read(len(proofs[0]))  # more may have come behind it
            break
        except BlockingIOError:
            yield "read"
    if not proof:
        raise ConnectionResetError
    if not hmac.compare_digest(proof, proofs[not server]):
        raise TransportError(
            "the other side has not proven that it holds this job's key: it is of another job, or somebody is in "
            "between"
        )
    if server:
        end.write(proofs[1])


class Securing:
    """The side that was connected to, on the reactor: `done(end)` when it is encrypted, `failed(why)` if it is not."""

    def __init__(
        self, reactor: Reactor, sock: socket.socket, key: bytes, done: Callable[[tls.Tls], object],
        failed: Callable[[str], object],
    ) -> None:  # fmt: skip
        self._reactor, self._sock, self._done, self._failed = reactor, sock, done, failed
        self._end: tls.Tls | None = tls.Tls(sock, key, True, certificates)
        """None when it is over; the timer below keeps this object longer than that."""
        self._steps = _steps(self._end, key, server=True)
        reactor.later(ATTEMPT, lambda: self._fail(f"no encrypted connection within {ATTEMPT:g} s"))
        self._step()

    def _step(self) -> None:
        if self._end is None:
            return
        try:
            waits = next(self._steps, None)
        except OSError as why:
            self._fail(_failed(why))
            return
        if waits is not None:
            self._reactor.add(self._sock, self._step, self._step if waits == "write" else None)
            return
        end, self._end = self._end, None
        self._reactor.remove(self._sock)
        self._done(end)

    def _fail(self, why: str) -> None:
        if self._end is not None:
            self._end = None
            self._reactor.remove(self._sock, close=True)
            self._failed(why)


class EncryptedSocket(socket.socket):
    """An encrypted stand-in for the socket of a control connection (`ControlLink`).  Takes `sock` over; not blocking.

    `recv` gives all that has come, so that from the first one on `select` tells the truth.  Bytes may have come with
    the last of the handshake: who begins to read looks once (`ControlLink.start`).
    """

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock.family, sock.type, sock.proto, sock.detach())
        self.end: tls.Tls | None = None
        """Set when the handshake is over, before anything is received or sent."""

    def recv(self, size: int, flags: int = 0) -> bytes:
        assert self.end is not None
        return self.end.read()

    def send(self, data: object, flags: int = 0) -> int:
        assert self.end is not None
        return self.end.write(data)  # type: ignore[arg-type]


def secured_dial(
    sock: socket.socket, key: bytes, timeout: float, look: Callable[[], object] = lambda: None
) -> socket.socket:
    """A dialled control connection, encrypted."""
    encrypted = EncryptedSocket(sock)
    try:
        encrypted.end = secure(encrypted, key, timeout, look)
    except BaseException:
        encrypted.close()
        raise
    return encrypted


def secure_accepted(
    reactor: Reactor, sock: socket.socket, key: bytes, done: Callable[[socket.socket], object],
    failed: Callable[[str], object],
) -> None:  # fmt: skip
    """An accepted control connection: `done` with the encrypted one."""
    encrypted = EncryptedSocket(sock)

    def ready(end: tls.Tls) -> None:
        encrypted.end = end
        done(encrypted)

    Securing(reactor, encrypted, key, ready, failed)


def _failed(why: OSError) -> str:
    if isinstance(why, TransportError):
        text = f"the connection could not be encrypted: {why}"
        return text if "certificate was refused" in text else f"{text}; {DIFFERS}"
    return f"the other side closed the connection instead of encrypting it: {DIFFERS}"
