"""HOCKET_ENCRYPT: results are right, nothing is to be read on the way, what is altered is an error, and nothing is
ever sent plain instead."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import harness
import headers
import man_in_the_middle
import pytest
import worlds

from hocket.control import encryption
from hocket.control.handshake import AuthError
from hocket.control.reactor import Reactor
from hocket.errors import TransportError
from hocket.transports.tcp import tls

ROOT = Path(__file__).parents[3]
CORPUS = sorted((ROOT / "tests" / "fuzz" / "tls").iterdir())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def job(source: str, size: int = 2, **env: str) -> harness.Job:
    """Ranks that meet over TCP."""
    where = f"tcp:127.0.0.1:{free_port()}"
    defaults = {"HOCKET_ENCRYPT": "1", "HOCKET_RENDEZVOUS": where, "PYTHONPATH": worlds.PATH, "HOCKET_TIMEOUT": "20"}
    return harness.Job(size, source, env=defaults | env)


def said(running: harness.Job, code: int = 0) -> list[str]:
    ends = running.wait(60)
    for end in ends:
        assert end.code == code, end.err + end.out
    return [end.out for end in ends]


TALK = """
import numpy as np, hocket, man_in_the_middle
man_in_the_middle.enter()
words = b"all that glisters is not gold"
with hocket.init(transport="tcp") as comm:
    me, other = comm.rank, 1 - comm.rank
    for n in (0, 1, 8, 4096, 16359, 16360, 16361, 16384, 65536, 100003, 131072 + 16360, (1 << 20) + 5):
        x = np.arange(n, dtype=np.uint8) + me
        y = np.empty_like(x)
        comm.sendrecv(x, other, y, other)
        assert (y == np.arange(n, dtype=np.uint8) + other).all(), n
        got = comm.allreduce(np.full(n, me + 1.0))
        assert (got == 3).all(), n
    text = np.frombuffer(words * 2000, np.uint8)
    there = np.empty_like(text)
    comm.sendrecv(text, other, there, other)
    assert there.tobytes() == text.tobytes()
    print(comm.explain() if me else "", flush=True)
passed = bytes(man_in_the_middle.seen)
assert len(passed) > 1 << 20
print("words", words in passed, "control", b'"exchange"' in passed)
"""


@pytest.mark.parametrize("encrypt", ["1", "0"])
def test_results_are_right_and_nothing_is_to_be_read(encrypt: str) -> None:
    """Whoever reads the bytes on the way finds neither data nor control messages; without encryption he finds both."""
    with job(TALK, HOCKET_ENCRYPT=encrypt) as running:
        first, second = said(running)
    plain = encrypt == "0"
    assert f"words {plain}" in first and f"words {plain} control {plain}" in second
    assert (f"rank 0: tcp (encrypted: TLS 1.3, {tls.CIPHERS[tls.FASTEST]})" in second) is not plain
    assert ("encrypted: all TCP connections, of data and control, by TLS 1.3 (OpenSSL 3" in second) is not plain


MIXED = """
import os, numpy as np, hocket
from hocket.transports.tcp import tls
if os.environ["HOCKET_RANK"] == "1":
    tls.FASTEST = tls.CHACHA                # a processor without AES instructions
else:
    tls.FASTEST = tls.AES
with hocket.init(transport="tcp") as comm:
    assert (comm.allreduce(np.arange(100000.0)) == comm.size * np.arange(100000.0)).all()
    print([line for line in comm.explain().splitlines() if "tcp (" in line])
"""


def test_ranks_whose_processors_differ() -> None:
    """Where one of two has no AES instructions they use what is fast on both."""
    with job(MIXED, 3) as running:
        said_by = said(running)
    chacha, aes = (f"tcp (encrypted: TLS 1.3, {tls.CIPHERS[each]})" for each in (tls.CHACHA, tls.AES))
    assert [(out.count(chacha), out.count(aes)) for out in said_by] == [(1, 1), (2, 0), (1, 1)]


ALTERED = """
import time, numpy as np, hocket, man_in_the_middle
man_in_the_middle.enter()
comm = hocket.init(transport="tcp")
x, wrong, began = np.arange(50000.0), 0, time.monotonic()
sums = np.empty_like(x)
try:
    for i in range(200):
        if i == 20 and comm.rank == 1:
            man_in_the_middle.flip()
        comm.allreduce(x, out=sums)
        wrong += not (sums == 2 * x).all()
    print("no error")
except hocket.Error as error:
    print(type(error).__name__, wrong, time.monotonic() - began < 10, error)
import os
os._exit(0)
"""


def test_a_bit_that_is_flipped_on_the_way_is_an_error_on_all_ranks() -> None:
    with job(ALTERED) as running:
        for out in said(running):
            assert out.split()[0] in ("TransportError", "PeerLostError") and out.split()[1:3] == ["0", "True"], out
            assert "altered on its way" in out


CONTROL = """
import time, numpy as np, hocket, man_in_the_middle
man_in_the_middle.enter()
comm = hocket.init(transport="tcp")
comm.allreduce(np.ones(3))
time.sleep(0.3)                     # all has passed
if comm.rank == 1:
    man_in_the_middle.flip()
    comm.world.session.stuck({})    # any control message: what passes next
    time.sleep(0.3)
try:
    for i in range(200):
        comm.allreduce(np.ones(3))
        time.sleep(0.02)
    print("no error")
except hocket.Error as error:
    print(type(error).__name__, error)
import os
os._exit(0)
"""


def test_an_altered_control_message_ends_the_job() -> None:
    with job(CONTROL) as running:
        for out in said(running):
            assert out.startswith("PeerLostError"), out


# --- slow ranks

SLOW = """
import os, signal, hocket, numpy as np
from hocket.control import encryption
comm = hocket.init(transport="tcp")
comm.barrier()
second, steps, stopped = comm.dup(), encryption._steps, []
def stopping(end, key, server):
    if server == bool(comm.rank) and not stopped:
        stopped.append(True)
        if comm.rank == {who}:
            os.kill(os.getpid(), signal.SIGSTOP)
    yield from steps(end, key, server)
encryption._steps = stopping
if comm.rank == 0:
    second.send(np.arange(5), 1)
else:
    assert (second.recv(np.zeros(5, int), 0) == np.arange(5)).all()
second.barrier()
print("done", stopped)
comm.close()
"""


@pytest.mark.parametrize("who", [0, 1])
def test_a_slow_rank_is_waited_for(who: int) -> None:
    """It is stopped in the middle of a lane's handshake for longer than that may take: the dialling one tries anew."""
    with job(SLOW.format(who=who)) as running:
        pid, until = running.processes[who].pid, time.monotonic() + 20
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < until
            time.sleep(0.02)
        time.sleep(encryption.ATTEMPT + 0.5)
        running.signal(who, signal.SIGCONT)
        assert all(out == "done [True]\n" for out in said(running))


# --- never plain instead

INIT = """
import os, hocket
try:
    hocket.init(transport="tcp", timeout=4, encrypt=os.environ["HOCKET_RANK"] == {who!r})
    print("joined")
except hocket.Error as error:
    print(type(error).__name__, error)
os._exit(0)
"""


@pytest.mark.parametrize(
    ("who", "error", "words"),
    [("0", "ArgumentError", "HOCKET_ENCRYPT is set on rank 0, and not on rank 1"),
     ("1", "AuthError", "HOCKET_ENCRYPT must be the same on every rank")],
)  # fmt: skip
def test_a_rank_that_encrypts_and_one_that_does_not(who: str, error: str, words: str) -> None:
    with job(INIT.format(who=who), HOCKET_ENCRYPT="") as running:
        first, second = said(running)
    assert second.startswith(error) and words in second
    assert "joined" not in first


def test_ranks_that_meet_inside_a_host_must_agree_too() -> None:
    """Their control connections are Unix sockets, which both kinds of rank can use."""
    for out in harness.run(2, INIT.format(who="1")):
        assert out.startswith("ArgumentError ranks [1] encrypt and ranks [0] do not"), out


ALONE = """
import os, hocket
from hocket.transports.tcp import tls
{before}
try:
    hocket.init(0, 2, {address!r}, timeout=3, encrypt=True{more})
except hocket.Error as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("before", "more", "words"),
    [("tls.LIBRARY = 'libssl.so.99'", "", "TransportError rank 0: HOCKET_ENCRYPT is set: OpenSSL 3 is needed"),
     ("tls.LIBRARY = 'libm.so.6'", "", "libm.so.6 has no"),
     ("os.environ.pop('HOCKET_SECRET')", ", auth='none'", "ArgumentError encryption needs a secret")],
    ids=["no library", "another library", "no secret"],
)  # fmt: skip
def test_what_cannot_be_encrypted_is_refused(before: str, more: str, words: str) -> None:
    source = ALONE.format(before=before, address=f"tcp:127.0.0.1:{free_port()}", more=more)
    assert words in harness.run(1, source)[0]


STORE = """
import os, hocket
os.environ.pop("HOCKET_SECRET")
try:
    hocket.init(0, 2, store=object(), encrypt=True)
except hocket.Error as error:
    print(type(error).__name__, error)
"""


def test_a_store_is_no_place_for_the_key() -> None:
    assert harness.run(1, STORE)[0].startswith("ArgumentError encryption needs a secret")


TRANSPORTS = """
import hocket
with hocket.init(transport="verbs,mpi,tcp", encrypt=True) as comm:
    print(comm.explain())
"""


def test_transports_that_do_not_encrypt_are_not_used() -> None:
    for out in harness.run(2, TRANSPORTS):
        for name in ("verbs", "mpi"):
            assert f"not {name}: it does not encrypt, and HOCKET_ENCRYPT is set: HOCKET_PLAIN={name} uses it" in out
        assert "tcp (encrypted" in out


# --- a hostile network

MEMORY = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def hostile_network(folder: Path, seed: int, include: Path = ROOT) -> tuple[int, str]:
    """Exit code and output of two seconds of it."""
    program = folder / "tls_fuzz"
    flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", f"-I{include}", *MEMORY]
    source = ROOT / "tests" / "fuzz" / "tls_fuzz.c"
    subprocess.run(["gcc", *flags, str(source), "-o", str(program), "-ldl"], check=True, timeout=60)
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    environment["ASAN_OPTIONS"] = "detect_leaks=0"
    done = subprocess.run(
        [str(program), "2", str(seed), *map(str, CORPUS)], capture_output=True, text=True, timeout=100, env=environment
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_a_hostile_network_can_but_end_a_stream(tmp_path: Path) -> None:
    code, text = hostile_network(tmp_path, int(time.time()))
    assert code == 0 and text.startswith("ok"), text


def test_the_hostile_network_would_be_noticed(tmp_path: Path) -> None:
    """A stream that goes on after a record which was not genuine."""
    old = "            const int why = hk_tls_failed(t, n);\n"
    forged = "            if (t->in_head < t->in_tail) { to[got++] = t->in[t->in_head++]; continue; }\n"
    headers.broken(tmp_path, old, forged + old, "transports/tcp/tls.h")
    code, text = hostile_network(tmp_path, 1, tmp_path)
    assert code != 0 and "tls_fuzz: " in text, text


# --- the two ends

def ends(client_key: bytes, server_key: bytes, altered: int | None = None) -> tuple[object, list[object]]:
    """What became of the dialling end and of the other; `altered`: which of the client's flights is, on its way."""
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
            first: object = encryption.secure(a, client_key, 5)
        except AuthError as error:
            first = error
        assert changed.wait(5)
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
            encryption.secure(a, bytes(tls.KEY), 2)


def test_a_silent_stranger_does_not_stay() -> None:
    a, b = socket.socketpair()
    reactor, heard = Reactor(), []
    began = time.monotonic()
    reactor.soon(lambda: encryption.Securing(reactor, b, bytes(tls.KEY), heard.append, heard.append))
    a.settimeout(5)
    assert a.recv(1) == b"" and time.monotonic() - began < 4
    reactor.close()  # what it does next is done
    a.close()
    assert heard == ["no encrypted connection within 2 s"]


def control() -> tuple[encryption.EncryptedSocket, encryption.EncryptedSocket]:
    made = [encryption.EncryptedSocket(each) for each in socket.socketpair()]
    for sock, server in zip(made, (False, True), strict=True):
        sock.end = tls.Tls(sock, bytes(tls.KEY), server)
    while [each.end.shake() for each in made if each.end] != [None, None]:
        continue
    return made[0], made[1]


def test_an_encrypted_socket_hides_nothing_from_select() -> None:
    """What has come is all read at once, however many records it is."""
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
