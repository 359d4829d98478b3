"""One connection in TLS: who gets through its handshake, what a hostile network can do, what its socket hides."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from hocket.control import encryption
from hocket.control.handshake import AuthError
from hocket.control.link import ControlLink
from hocket.control.reactor import Reactor
from hocket.errors import TransportError
from hocket.system import tls
from support import headers, man_in_the_middle
from support.compiled import compiled
from support.faulty import wait_for

ROOT = Path(__file__).parents[3]
CORPUS = sorted((ROOT / "tests" / "fuzz" / "tls").iterdir())


# --- a hostile network

MEMORY = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def hostile_network(folder: Path, seed: int, seconds: int = 2, include: Path = ROOT) -> tuple[int, str]:
    """Exit code and output of so many seconds of it."""
    flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", f"-I{include}", *MEMORY]
    source = ROOT / "tests" / "fuzz" / "tls_fuzz.c"
    program = compiled(folder / "tls_fuzz", [source], *flags, "-ldl")
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    environment["ASAN_OPTIONS"] = "detect_leaks=0"
    command = [str(program), str(seconds), str(seed), *map(str, CORPUS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    return done.returncode, done.stdout + done.stderr


def test_a_hostile_network_can_but_end_a_stream(tmp_path: Path) -> None:
    code, text = hostile_network(tmp_path, int(time.time()), 1)
    assert code == 0 and text.startswith("ok"), text


def test_the_hostile_network_would_be_noticed(tmp_path: Path) -> None:
    """A stream that goes on after a record which was not genuine."""
    old = "            const int why = hk_tls_failed(t, n);\n"
    forged = "            if (t->in_head < t->in_tail) { to[got++] = t->in[t->in_head++]; continue; }\n"
    headers.broken(tmp_path, old, forged + old, "system/tls.h")
    code, text = hostile_network(tmp_path, 1, include=tmp_path)
    assert code != 0 and "tls_fuzz: " in text, text


# --- the two ends

@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer than a handshake may."""
    monkeypatch.setattr(encryption, "ATTEMPT", 60.0)


def ends(client_key: bytes, server_key: bytes, altered: int | None = None) -> tuple[object, list[object]]:
    """The fate of the dialling end and of the other; `altered`: which of the client's flights is, on its way."""
    a, b = socket.socketpair()
    if altered is not None:
        a = man_in_the_middle.between(a, altered)
    reactor, heard, changed = Reactor(), [], threading.Event()

    def hear(what: object) -> None:
        heard.append(what)
        changed.set()

    reactor.soon(lambda: encryption.Securing(reactor, b, server_key, hear, hear))
    try:
        try:
            first: object = encryption.secure(a, client_key, 60)
        except AuthError as error:
            first = error
        assert changed.wait(60)
    finally:
        reactor.close()
        a.close()
        b.close()
    return first, heard


def test_a_key_fits_one_purpose_and_one_pair_of_ranks() -> None:
    key = encryption.connection_key(b"k" * 32, "tls:00000000", 1, 0)
    first, (second,) = ends(key, key)
    assert isinstance(first, tls.Tls) and isinstance(second, tls.Tls)
    for secret, purpose, client, server in ((b"K", "tls:00000000", 1, 0), (b"k", "tls:00000001", 1, 0),
                                            (b"k", "tls:00000000", 0, 1), (b"k", "tls:00000000", 1, 2)):  # fmt: skip
        first, (second,) = ends(key, encryption.connection_key(secret * 32, purpose, client, server))
        assert isinstance(first, AuthError) and "could not be encrypted" in str(first)
        assert isinstance(second, str) and "HOCKET_ENCRYPT must be the same on every rank" in second


@pytest.mark.parametrize("cipher", [tls.AES, tls.CHACHA])
def test_the_dialling_ends_cipher_is_used(cipher: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is the fastest of the other's; the network sees in the ServerHello which it is."""
    monkeypatch.setattr(tls, "FASTEST", cipher)
    seen = man_in_the_middle.seen
    seen.clear()
    first, (second,) = ends(bytes(tls.KEY), bytes(tls.KEY), altered=-1)
    assert isinstance(first, tls.Tls) and isinstance(second, tls.Tls)
    hello = seen.index(b"\x16\x03\x03", 5)  # the client's says 0x0301
    assert seen[hello + 5] == 2
    session = hello + 5 + 4 + 2 + 32  # behind the header, version and random
    assert seen[session + 1 + seen[session]:][:2] == bytes([0x13, 2 + cipher])


@pytest.mark.parametrize("flight", [0, 1])
def test_a_handshake_that_is_altered_fails_at_both_ends(flight: int) -> None:
    """Also where it is the client's last word, after which its own part is over."""
    first, (second,) = ends(bytes(tls.KEY), bytes(tls.KEY), flight)
    assert isinstance(first, AuthError), first
    assert isinstance(second, str) and "could not be encrypted" in second


def test_who_does_not_encrypt_is_told_from_who_is_silent() -> None:
    a, b = socket.socketpair()
    with a, b, pytest.raises(TransportError, match="does not answer"):
        encryption.secure(a, bytes(tls.KEY), 0.2)
    a, b = socket.socketpair()
    with a, b:
        b.sendall(b'\0\0\0\x02{}' * 100)
        with pytest.raises(AuthError, match="could not be encrypted: .*HOCKET_ENCRYPT must be the same"):
            encryption.secure(a, bytes(tls.KEY), 60)


def test_a_silent_stranger_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encryption, "ATTEMPT", 0.5)
    a, b = socket.socketpair()
    reactor, heard = Reactor(), []
    began = time.monotonic()
    reactor.soon(lambda: encryption.Securing(reactor, b, bytes(tls.KEY), heard.append, heard.append))
    a.settimeout(60)
    assert a.recv(1) == b"" and time.monotonic() - began < 20
    reactor.close()  # what it does next is done
    a.close()
    assert heard == ["no encrypted connection within 0.5 s"]


def test_what_comes_right_behind_the_handshake_is_heard() -> None:
    """A slow end reads it with the last of the handshake, and `select` does not see it any more."""
    a, b = socket.socketpair()
    reactor, heard = Reactor(), list[object]()

    def speaks(sock: socket.socket) -> None:
        link = ControlLink(reactor, sock)
        link.start()
        link.send({"has": 0})

    reactor.soon(lambda: encryption.secure_accepted(reactor, b, bytes(tls.KEY), speaks, heard.append))
    listens = ControlLink(reactor, encryption.secured_dial(a, bytes(tls.KEY), 60, lambda: time.sleep(0.2)))
    listens.on_message = heard.append
    reactor.soon(listens.start)
    try:
        wait_for(lambda: heard, 20.0)
    finally:
        reactor.close()
    assert heard == [{"has": 0}]


def control() -> tuple[encryption.EncryptedSocket, encryption.EncryptedSocket]:
    made = [encryption.EncryptedSocket(each) for each in socket.socketpair()]
    for sock, server in zip(made, (False, True), strict=True):
        sock.end = tls.Tls(sock, bytes(tls.KEY), server)
    while [each.end.shake() for each in made if each.end] != [None, None]:
        continue
    return made[0], made[1]


def test_an_encrypted_socket_hides_nothing_from_select() -> None:
    """Bytes that have come are all read at once, however many records they are."""
    a, b = control()
    with a, b:
        for i in range(100):
            assert a.send(bytes([i]) * 100) == 100
        assert b.recv(1) == b"".join(bytes([i]) * 100 for i in range(100))
        with pytest.raises(BlockingIOError):
            b.recv(1)
        a.close()
        assert b.recv(1) == b""


def test_an_encrypted_socket_that_nobody_reads_takes_nothing_twice() -> None:
    a, b = control()
    data = bytes(i % 251 for i in range(4 << 20))
    at, got = 0, bytearray()
    with a, b:
        full = 0
        while len(got) < len(data):
            try:
                while at < len(data):
                    at += a.send(memoryview(data)[at:])
            except BlockingIOError:
                full += 1
            got += b.recv(1)
        assert bytes(got) == data and full > 0
