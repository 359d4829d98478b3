"""Connections that break are made again, and go on where they were: equal results, whatever breaks where."""

from __future__ import annotations

import socket
import threading
import time

import numpy as np
import pytest

from hocket.conformance.ends import End, Side
from hocket.control.handshake import Connection
from hocket.errors import TransportError
from hocket.transports.tcp import answers
from hocket.transports.tcp.healing import HealingStreams
from support import jobs, worlds

MANY = """
import logging, os
import numpy as np, hocket
from support import cutting      # it patches modules
logging.getLogger("hocket").setLevel(logging.ERROR)
cutting.enter()
with hocket.init(transport="tcp", timeout=60) as comm:
    p, me, other = comm.size, comm.rank, 1 - comm.rank
    urgent, calls, cuts = comm.lane("urgent", 1), 0, 0
    end = cutting.now_and_then({every}, comm.rank)
    while cuts < {cuts}:
        for n in (0, 1, 8, 1000, 4096, 70_001, 300_000):
            x = np.arange(n, dtype=np.float32) + me
            assert (comm.allreduce(x, out=np.empty_like(x)) == 2 * np.arange(n, dtype=np.float32) + 1).all(), n
            works = [lane.allreduce(np.full(n, me + 1.0), async_op=True) for lane in (comm, urgent, comm)]
            assert all((work.result() == 3).all() for work in works), n
            into = np.empty_like(x)
            comm.sendrecv(x, other, into, other)
            assert (into == np.arange(n, dtype=np.float32) + other).all(), n
            comm.broadcast(x)
            assert (x == np.arange(n, dtype=np.float32)).all(), n
            coded = comm.allreduce(np.ones(n, np.float32), codec="int8")
            assert (coded == 2).all(), n
            calls += 1
        healed = comm.world.transports["tcp"].mender.history.healed.values()
        cuts = comm.allreduce(np.array([sum(each.times for each in healed)]))[0]
    end()
    comm.barrier()
    assert ": tcp (" in comm.explain() and "made again" in comm.explain(), comm.explain()
    recorded = comm.recorder().recorded()
    records = [each for ring in recorded.rings for each in ring.records[ring.records["kind"] == 8]]
    marks = {{recorded.what(int(each["what"])).text for each in records}}
    assert f"link to rank {{other}} healed" in marks, marks
    print("healed", cuts, "calls", calls)
"""


@pytest.mark.parametrize(
    ("cuts", "every", "encrypt", "streams"), [(300, 0.004, "0", "1"), (20, 0.03, "1", "1"), (150, 0.004, "0", "4")]
)
def test_cuts_anywhere_change_no_result(cuts: int, every: float, encrypt: str, streams: str) -> None:
    """Connections of data and control, in either direction, in calls, messages, lanes and codecs, one or several."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = f"tcp:127.0.0.1:{server.getsockname()[1]}"
    source = MANY.format(cuts=cuts, every=every)
    env = {"HOCKET_ENCRYPT": encrypt, "HOCKET_RENDEZVOUS": where, "HOCKET_STREAMS": streams}
    for out in jobs.run(2, source, 90, PYTHONPATH=worlds.PATH, **env):
        assert int(out.split()[1]) >= cuts


PLACES = """
import logging, itertools
import numpy as np, hocket
from support import cutting      # it patches modules
logging.getLogger("hocket").setLevel(logging.ERROR)
places = iter(range({first}, {first} + 4097 + 200, {every}))
def make(link):
    return cutting.Relay(link, at=next(places, -1) if hocket_rank == 0 else -1)
import os
hocket_rank = int(os.environ["HOCKET_RANK"])
cutting.enter(make)
with hocket.init(transport="tcp", timeout=60) as comm:
    for i in itertools.count():
        x = np.full(4096, i % 251, np.uint8)
        if comm.rank == 0:
            comm.send(x, 1)
        else:
            got = comm.recv(np.empty_like(x), 0)
            assert (got == i % 251).all(), i
        more = comm.broadcast(np.array([places.__length_hint__()]))[0]
        if not more:
            break
    print("messages", i)
"""


@pytest.mark.parametrize(
    ("every", "encrypt"),
    [(97, "0"), (389, "1"), pytest.param(1, "0", marks=pytest.mark.more), pytest.param(1, "1", marks=pytest.mark.more)],
)
def test_a_cut_at_any_byte_of_a_message(every: int, encrypt: str) -> None:
    source = PLACES.format(every=every, first=1000 * int(encrypt))  # behind TLS's handshake, which is tried anew whole
    jobs.run(2, source, 60 if every > 1 else 300, PYTHONPATH=worlds.PATH, HOCKET_ENCRYPT=encrypt)


DIES = """
import os, time
import numpy as np, hocket
from support import cutting      # it patches modules
cutting.enter()
comm = hocket.init(transport="tcp", timeout=30)
comm.barrier()
if comm.rank == 1:
    time.sleep(0.2)
    os.abort()
began = time.monotonic()
try:
    comm.allreduce(np.ones(300_000))
except hocket.PeerLostError as error:
    print(error.ranks, time.monotonic() - began < 1.2, error)
os._exit(0)
"""


def test_a_process_that_dies_is_no_broken_link() -> None:
    with jobs.Job(2, DIES, env={"PYTHONPATH": worlds.PATH}) as running:
        first = running.wait(30)[0]
    assert first.out.startswith("(1,) True"), first


@pytest.fixture
def pair() -> object:
    """The streams of one end, and the socket at the other."""
    ours, theirs = socket.socketpair()
    bell, _ = socket.socketpair()
    streams = HealingStreams(ours, False, bell.fileno())
    yield streams, theirs
    streams.close()
    theirs.close()
    bell.close()


def test_a_peer_that_says_nothing_makes_memory_grow_to_a_bound(pair: tuple[HealingStreams, socket.socket]) -> None:
    """It reads all, and never says what it has: the sender waits, and its time limit counts."""
    streams, theirs = pair
    read = [0]

    def reads() -> None:
        while data := theirs.recv(1 << 20):
            read[0] += len(data)

    threading.Thread(target=reads, daemon=True).start()
    end = End(0, [None, Side(streams.send, streams.recv, streams)])
    assert end.send(np.zeros(64 << 20, np.uint8), timeout=0.5) == "timeout"
    sent, acked, room = streams.kept
    assert acked == 0 and sent == room == 8 << 20


def test_what_a_receiver_says_must_be_possible(pair: tuple[HealingStreams, socket.socket]) -> None:
    streams, theirs = pair
    end = End(0, [None, Side(streams.send, streams.recv, streams)])
    assert end.send(np.zeros(1000, np.uint8)) == "done"
    for count in (1025, 1 << 40):
        with pytest.raises(TransportError, match=f"it has {count} bytes of a stream: 0 to 1024 can be"):
            streams.again(socket.socketpair()[0], count)
    theirs.sendall(b"x" * 16)  # no word of a receiver's
    assert end.send(np.zeros(300_000, np.uint8), timeout=0.3) == "timeout" and streams.to_give


def test_an_answer_is_proven_by_its_own_connections_key() -> None:
    """Words of another connection, and altered ones, count for nothing."""
    said, wrong = [], 0
    for key in (b"first", b"second"):
        ours, theirs = socket.socketpair()
        link = Connection(ours.family, ours.type, ours.proto, ours.detach())
        link.key = key
        assert answers.say(link, link, answers.HERE, 77)
        said.append(theirs.recv(100))
        for word in (said[0], said[0][:-1] + bytes([said[0][-1] ^ 1]), said[0].replace(b"\x4d", b"\x4e", 1)):
            theirs.sendall(word)
            try:
                assert answers.answer(link, link, time.monotonic() + 5) == (answers.HERE, 77)
            except TransportError as why:
                assert "somebody is in between" in str(why)
                wrong += 1
        link.close()
        theirs.close()
    assert wrong == 5


FLIPS = """
import logging, os
import numpy as np, hocket
from support import cutting      # it patches modules
logging.getLogger("hocket").setLevel(logging.ERROR)
flips = cutting.flips(3e-7, int(os.environ["HOCKET_RANK"]))
cutting.enter(lambda link: cutting.Relay(link, flip=flips))
comm = hocket.init(transport="tcp", timeout=20)
wrong, x = 0, np.zeros(20_000, np.float32)
try:
    for i in range(100):
        wrong += not (comm.allreduce(x, out=np.empty_like(x)) == 0).all()
    damaged = comm.world.transports["tcp"].mender.history.damaged
    print("end", wrong, sum(damaged.values()))
    comm.barrier()
except hocket.Error as error:
    print("error", wrong, error)
os._exit(0)
"""


@pytest.mark.parametrize("check", ["payload", ""])
def test_bits_that_flip_are_found(check: str) -> None:
    """A relay ends the TCP connections on both sides, so that TCP finds nothing: without the check sums are wrong."""
    outs = jobs.run(2, FLIPS, 60, PYTHONPATH=worlds.PATH, HOCKET_CHECK=check)
    ends = [out.split() for out in outs]
    if check:
        assert all(each[:2] == ["end", "0"] for each in ends) and any(int(each[2]) for each in ends), outs
    else:
        assert any(each[0] == "error" or int(each[1]) for each in ends), outs
