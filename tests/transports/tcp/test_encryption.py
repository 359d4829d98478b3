"""HOCKET_ENCRYPT: results are right, nothing is to be read on the way, what is altered is an error, and nothing is
ever sent plain instead."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from hocket.control import encryption
from hocket.system import tls
from support import jobs, ports, worlds
from support.cases import more


def job(source: str, size: int = 2, **env: str) -> jobs.Job:
    """Ranks that meet over TCP."""
    where = f"tcp:127.0.0.1:{ports.free()[0]}"
    defaults = {"HOCKET_ENCRYPT": "1", "HOCKET_RENDEZVOUS": where, "PYTHONPATH": worlds.PATH, "HOCKET_TIMEOUT": "60"}
    return jobs.Job(size, source, env=defaults | env)


def said(running: jobs.Job, code: int = 0) -> list[str]:
    ends = running.wait(100)
    for end in ends:
        assert end.code == code, end.err + end.out
    return [end.out for end in ends]


TALK = """
import numpy as np, hocket
from support import man_in_the_middle
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
from hocket.system import tls
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
import time, numpy as np, hocket
from support import man_in_the_middle
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
    print(type(error).__name__, wrong, time.monotonic() - began < 20, error)
import os
os._exit(0)
"""


def test_a_bit_that_is_flipped_on_the_way_is_an_error_on_all_ranks() -> None:
    with job(ALTERED) as running:
        for out in said(running):
            assert out.split()[0] in ("TransportError", "PeerLostError") and out.split()[1:3] == ["0", "True"], out
            assert "altered on its way" in out


CONTROL = """
import time, numpy as np, hocket
from support import man_in_the_middle
man_in_the_middle.enter()
comm = hocket.init(transport="tcp")
comm.allreduce(np.ones(3))
time.sleep(0.3)                     # all has passed
if comm.rank == 1:
    man_in_the_middle.flip()
    comm.world.session.open("tcp")    # any control message: what passes next
    while man_in_the_middle._flip.is_set():
        time.sleep(0.01)
try:
    for i in range(2000):
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


@pytest.mark.parametrize("who", [0, *more(1)])
def test_a_slow_rank_is_waited_for(who: int) -> None:
    """It is stopped in a channel's handshake for longer than that may take: the dialling one tries anew."""
    with job(SLOW.format(who=who)) as running:
        pid, until = running.processes[who].pid, time.monotonic() + 60
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < until
            time.sleep(0.02)
        time.sleep(encryption.ATTEMPT + 0.5)
        running.signal(who, signal.SIGCONT)
        assert all(out == "done [True]\n" for out in said(running))


# --- never plain instead

INIT = """
import os, hocket
from hocket.control import rendezvous
rendezvous.Meet.patience = 1.0          # with servers that are not of this job
try:
    hocket.init(transport="tcp", timeout=60, encrypt=os.environ["HOCKET_RANK"] == {who!r})
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
        second, _ = running.processes[1].communicate(timeout=90)
        assert running.processes[0].poll() is None, "it waits for a rank 1 that is as itself"
    assert second.startswith(error) and words in second


def test_ranks_that_meet_inside_a_host_must_agree_too() -> None:
    """Their control connections are Unix sockets, which both kinds of rank can use."""
    for out in jobs.run(2, INIT.format(who="1")):
        assert out.startswith("ArgumentError ranks [1] encrypt and ranks [0] do not"), out


ALONE = """
import os, hocket
from hocket.system import tls
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
    source = ALONE.format(before=before, address=f"tcp:127.0.0.1:{ports.free()[0]}", more=more)
    assert words in jobs.run(1, source)[0]


STORE = """
import os, hocket
os.environ.pop("HOCKET_SECRET")
try:
    hocket.init(0, 2, store=object(), encrypt=True)
except hocket.Error as error:
    print(type(error).__name__, error)
"""


def test_a_store_is_no_place_for_the_key() -> None:
    assert jobs.run(1, STORE)[0].startswith("ArgumentError encryption needs a secret")


TRANSPORTS = """
import hocket
with hocket.init(transport="verbs,mpi,tcp", encrypt=True) as comm:
    print(comm.explain())
"""


def test_transports_that_do_not_encrypt_are_not_used() -> None:
    for out in jobs.run(2, TRANSPORTS):
        for name in ("verbs", "mpi"):
            assert f"not {name}: it does not encrypt, and HOCKET_ENCRYPT is set: HOCKET_PLAIN={name} uses it" in out
        assert "tcp (encrypted" in out
