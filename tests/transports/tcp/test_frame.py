"""Arbitrary bytes into every parser of what comes from the network: refused by name, never worse."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import subprocess
import threading
import time
import tracemalloc
from pathlib import Path

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.conformance.ends import End, Side
from hocket.control.handshake import HELLO, NONCE, PROOF, START, AuthError, ClientSide, Hello, ServerSide, prove
from hocket.control.link import ENDED, LENGTH, LIMIT, ControlLink, Message
from hocket.control.reactor import Reactor
from hocket.transports.tcp.healing import HealingStreams
from hocket.transports.tcp.stream import SocketStreams
from support import headers, jobs
from support.compiled import compiled

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "tests" / "fuzz" / "frame_fuzz.c"
CORPUS = sorted((ROOT / "tests" / "fuzz" / "corpus").iterdir())
FLAGS = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fno-sanitize-recover=all"]


MEMORY = "-fsanitize=address,undefined"


def run(*command: object) -> subprocess.CompletedProcess[str]:
    # A preloaded allocator or sanitizer of the test run itself must not leak into this program.
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=60, env=environment)


def test_a_stream_of_any_bytes_is_read_or_refused(tmp_path: Path) -> None:
    program = compiled(tmp_path / "fuzz", [SOURCE], *FLAGS, MEMORY, f"-I{ROOT}")
    done = run(program, 2, *CORPUS)
    assert done.returncode == 0 and done.stdout.startswith("ok"), done.stderr


BROKEN = [
    ("frame.h", "    if (n > HK_FRAME_MAX) return 0;\n", ""),
    ("stream.h", "staged < r->left ? staged : (size_t)r->left", "staged"),
    ("stream.h", "r->tail, HK_STAGE - r->tail);", "r->tail, HK_STAGE);"),
    ("stream.h", "    r->left -= (uint64_t)n;\n", ""),
    ("stream.h", "r->head += before;", "r->head += HK_FRAME_PADDED_MORE;"),
]


@pytest.mark.parametrize(("header", "old", "new"), BROKEN)
def test_the_fuzzer_notices(header: str, old: str, new: str, tmp_path: Path) -> None:
    headers.broken(tmp_path, old, new, f"transports/tcp/{header}")
    program = compiled(tmp_path / "fuzz", [SOURCE], *FLAGS, MEMORY, f"-I{tmp_path}")
    assert run(program, 4, *CORPUS).returncode != 0


@pytest.mark.skipif(shutil.which("clang") is None, reason="libFuzzer is clang's; gcc runs the same target above")
def test_the_libfuzzer_target(tmp_path: Path) -> None:
    flags = [*FLAGS, "-DLIBFUZZER", "-fsanitize=fuzzer,address,undefined", f"-I{ROOT}"]
    program = compiled(tmp_path / "fuzz", [SOURCE], *flags, compiler="clang")
    (tmp_path / "found").mkdir()
    options = ["-max_total_time=3", "-max_len=70000", f"-artifact_prefix={tmp_path}/"]
    done = run(program, *options, tmp_path / "found", SOURCE.parent / "corpus")
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize(
    ("length", "place", "before"),
    [(0, 0, 24), (4095, 48, 24), (4096, 0, 64), (70000, 16, 64), (70000, 64, 64), (4096, 48, 96), (70000, 127, 96)],
)
def test_a_long_payload_begins_where_the_kernel_copies_it_fast(length: int, place: int, before: int) -> None:
    """`place`: of the array in its page."""
    room = numpy.full(length + 8192, 7, numpy.uint8)
    at = (place - room.ctypes.data) % 4096
    ours, theirs = socket.socketpair()
    channels = SocketStreams(ours)
    with theirs:
        theirs.settimeout(30)
        end = End(0, [None, Side(channels.send, channels.recv, channels)])
        assert end.send(room[at : at + length], tag=5) == "done"
        channels.close()
        sent = b"".join(iter(lambda: theirs.recv(1 << 16), b""))
    tag, said = struct.unpack("<QQ", sent[8:24])
    assert (sent[:4], tag, said) == (b"hkt1", 5, length | (before == 96) << 63)
    assert sent[24:before] == bytes(before - 24) and sent[before:] == bytes([7]) * length


@pytest.mark.parametrize("place", [16, 48])
@pytest.mark.parametrize("heals", [False, True])
def test_each_call_ends_with_a_page_of_the_frame(place: int, heals: bool) -> None:
    """The kernel's next buffer may begin behind it.  A socket that keeps packets apart shows what each call sends."""
    room = numpy.full(1_000_000, 7, numpy.uint8)
    at = (place - room.ctypes.data) % 4096
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reading, bell = os.pipe()
    with theirs, os.fdopen(reading), os.fdopen(bell):
        channels = HealingStreams(ours, False, bell) if heals else SocketStreams(ours)
        theirs.settimeout(30)
        end = End(0, [None, Side(channels.send, channels.recv, channels)])
        calls: list[int] = []

        def read() -> None:
            while sum(calls) < 500_000:
                calls.append(len(theirs.recv(1 << 20)))

        reader = threading.Thread(target=read)
        reader.start()
        assert end.send(room[at : at + 500_000], tag=5) == "done"
        reader.join(30)
        channels.close()
    assert len(calls) > 3 and not any(each % 4096 for each in calls[:-1]), calls


EVERYWHERE = """
    import numpy as np
    import hocket
    comm = hocket.init(transport="tcp")
    for length in (0, 4095, 4096, 70000, 300001):
        for place in (0, 16, 48, 112):
            room = np.zeros(length + 8192, np.uint8)
            at = (place - room.ctypes.data) % 4096
            x = room[at : at + length]
            if comm.rank == 0:
                x[:] = np.arange(length) % 251
                comm.send(x, 1)
            else:
                comm.recv(x, 0)
                assert np.array_equal(x, np.arange(length) % 251), (length, place)
    print("right")
    comm.close()
"""


@pytest.mark.parametrize("encrypt", ["0", "1"])
def test_payloads_of_each_place_arrive(encrypt: str) -> None:
    assert jobs.run(2, EVERYWHERE, HOCKET_ENCRYPT=encrypt) == ["right\n"] * 2


# --- the handshake

PIECES = st.lists(st.binary(max_size=200), max_size=8)


@settings(max_examples=300, deadline=None)
@given(PIECES, st.booleans(), st.booleans())
def test_a_handshake_of_any_bytes_ends_in_auth_error(pieces: list[bytes], client: bool, honest_start: bool) -> None:
    side = ClientSide(b"k", Hello(1, "tcp", "job")) if client else ServerSide(b"k")
    if honest_start and not client:
        side.feed(ClientSide(b"k", Hello(1, "tcp", "job")).start)
    for piece in pieces:
        try:
            side.feed(piece)
        except AuthError:
            break
        assert 0 < side.missing <= START
    assert not side.done


@settings(max_examples=300, deadline=None)
@given(st.binary(min_size=HELLO.size - 9, max_size=HELLO.size - 9))
def test_a_hello_of_any_fields_is_answered_or_refused(rest: bytes) -> None:
    """Right magic, version and key, anything else."""
    server = ServerSide(b"k")
    said = (ClientSide(b"k", Hello(1, "tcp", "job")).start[:8] + rest + bytes(2))[: HELLO.size]
    try:
        assert len(server.feed(said + prove(b"k", b"hello", said))) == NONCE + PROOF
    except AuthError as why:
        assert len(why.reply) in (0, NONCE + PROOF)
    assert not server.done and server.hello is None


# --- control messages

@pytest.fixture(scope="module")
def reactor():
    made = Reactor()
    yield made
    made.close()


def ends_after(
    reactor: Reactor, data: bytes, close: bool = True, within: float = 60.0
) -> tuple[str | None, list[Message]]:
    """The end of a link that reads `data` (None: it did not), and what it understood."""
    ours, theirs = socket.socketpair()
    link, heard, end, over = ControlLink(reactor, ours), [], [], threading.Event()
    link.on_message = heard.append
    link.on_end = lambda how: (end.append(how), over.set())
    reactor.soon(link.start)
    with contextlib.suppress(OSError):  # it may have hung up already
        theirs.sendall(data)
        if close:
            theirs.shutdown(socket.SHUT_WR)
    over.wait(within)
    link.close()
    theirs.close()
    return (end[0] if end else None), heard


def framed(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=60), st.binary(max_size=60).map(framed), st.just(framed(b'{"a":1}')))))
def test_a_control_connection_of_any_bytes_only_ends(reactor: Reactor, pieces: list[bytes]) -> None:
    how, heard = ends_after(reactor, b"".join(pieces))
    assert how in (ENDED, "it sent bytes that are not a control message")
    assert all(isinstance(message, dict) for message in heard)


WRONG = [b"[" * 100000, b"[]", b"1e999999", b"\xff\xfe", b'{"a":' * 50000, b"9" * 5000, b"NaN", b""]


@pytest.mark.parametrize("body", WRONG, ids=range(len(WRONG)))
def test_what_is_no_control_message_ends_the_connection(reactor: Reactor, body: bytes) -> None:
    assert ends_after(reactor, framed(body), close=False) == ("it sent bytes that are not a control message", [])


def test_a_promised_size_takes_no_memory(reactor: Reactor) -> None:
    tracemalloc.start()
    try:
        assert ends_after(reactor, LENGTH.pack(LIMIT + 1), close=False)[0] is not None
        assert ends_after(reactor, LENGTH.pack(LIMIT) + b"x", close=False, within=0.3) == (None, [])
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_large_message_is_read_in_linear_time(reactor: Reactor) -> None:
    body = b'{"a":"' + b"x" * (8 << 20) + b'"}'
    begun = time.monotonic()
    how, heard = ends_after(reactor, framed(body))
    assert how == ENDED and len(heard) == 1
    assert time.monotonic() - begun < 8
