"""Connections that break are made again, and go on where they were: equal results, whatever breaks where."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hocket.conformance.ends import End, Side
from hocket.control.handshake import Connection
from hocket.errors import TransportError
from hocket.tools import report
from hocket.transports.tcp import answers
from hocket.transports.tcp.healing import HealingStreams
from support import jobs, ports, storms, worlds
from support.cases import more


@pytest.mark.parametrize(
    ("cuts", "every", "encrypt", "streams"), [(100, 0.004, "0", "1"), (12, 0.03, "1", "1"), (60, 0.004, "0", "4")]
)
def test_cuts_anywhere_change_no_result(cuts: int, every: float, encrypt: str, streams: str) -> None:
    """Connections of data and control, in either direction, in calls, messages, lanes and codecs, one or several."""
    assert storms.cut(cuts, every, 0, HOCKET_ENCRYPT=encrypt, HOCKET_STREAMS=streams) >= cuts


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
    [(97, "0"), (389, "1"), *more((1, "0"), (1, "1"))],
)
def test_a_cut_at_any_byte_of_a_message(every: int, encrypt: str) -> None:
    source = PLACES.format(every=every, first=1000 * int(encrypt))  # behind TLS's handshake, which is tried anew whole
    limits = {"HOCKET_LOST_AFTER": storms.LIMIT}
    jobs.run(2, source, 90 if every > 1 else 300, PYTHONPATH=worlds.PATH, HOCKET_ENCRYPT=encrypt, **limits)


DIES = """
import os, time
import numpy as np, hocket
from support import cutting      # it patches modules
cutting.enter()
comm = hocket.init(transport="tcp", timeout=60)
comm.barrier()
behind = os.path.join(os.path.dirname(__file__), "behind the barrier")
if comm.rank == 1:
    while not os.path.exists(behind):
        time.sleep(0.01)
    time.sleep(0.2)
    os.abort()
open(behind, "w").close()
began = time.monotonic()
try:
    comm.allreduce(np.ones(300_000))
except hocket.PeerLostError as error:
    print(error.ranks, time.monotonic() - began < 20, error)
os._exit(0)
"""


def test_a_process_that_dies_is_no_broken_link() -> None:
    with jobs.Job(2, DIES, env={"PYTHONPATH": worlds.PATH, "HOCKET_LOST_AFTER": "60"}) as running:
        first = running.wait(90)[0]
    assert first.out.startswith("(1,) True"), first


GIVEN_UP = """
import os, time
import hocket
from hocket.control.mending import SILENT
from hocket.transports.tcp import transport
transport.HEALS_INSIDE = True
with hocket.init(transport="tcp") as comm:
    comm.barrier()
    session = comm.world.session
    if comm.rank == 0:
        session.reactor.soon(lambda: session._links._links[1].end(SILENT))
    began = time.monotonic()
    try:
        if comm.rank:
            comm.recv(bytearray(8), 0, timeout=60)
        else:
            comm.barrier(timeout=60)
    except hocket.PeerLostError as error:
        print(time.monotonic() - began < 20, error)
    heard = os.path.join(os.path.dirname(__file__), "heard")
    if comm.rank:
        open(heard, "w").close()
    while not os.path.exists(heard):    # rank 0's process does not end before
        time.sleep(0.01)
"""


def test_a_rank_that_was_given_up_hears_it_when_its_link_is_back() -> None:
    """Its cable came back before it had noticed; it asked for another connection for ever, and waited for a call's."""
    first, second = jobs.run(2, GIVEN_UP, 90, HOCKET_RENDEZVOUS=f"tcp:127.0.0.1:{ports.free()[0]}")
    assert first.startswith("True") and "rank 1" in first, first
    assert second.startswith("True") and 'it has given this rank up ("its host does not answer' in second, second


OUTLIVES = """
import itertools, os, signal, socket, time
import numpy as np, hocket
from hocket.transports.tcp.long import paths
from support import cutting      # it patches modules
cutting.enter()
dial, number = paths.dial, itertools.count()
def breaks_at_once(*args):
    link = dial(*args)
    if next(number) % 2:
        link.shutdown(socket.SHUT_RDWR)
        time.sleep(0.01)
    return link
paths.dial = breaks_at_once
with hocket.init(transport="tcp") as comm:
    two = comm.split(comm.rank // 2)
    two.allreduce(np.ones(1))
    try:
        comm.barrier()
        if comm.rank == 2:  # others may be in that barrier yet
            os.kill(os.getpid(), signal.SIGKILL)
        comm.barrier()
    except hocket.PeerLostError as error:
        assert error.ranks == (2,), error
    for _ in range(5):
        for relay in list(cutting.relays):
            relay.cut()
        assert (two.allreduce(np.ones(100_000), timeout=60) == 2).all()
    done = os.path.join(os.path.dirname(__file__), "done-")
    open(done + str(comm.rank), "w").close()
    while not all(os.path.exists(done + str(rank)) for rank in (0, 1)):  # who stays can send again what was cut off
        time.sleep(0.01)
"""


def test_a_link_is_made_again_though_another_rank_was_lost() -> None:
    """Also where every second one breaks as it is made."""
    with jobs.Job(3, OUTLIVES, env={"PYTHONPATH": worlds.PATH, "HOCKET_LOST_AFTER": storms.LIMIT}) as running:
        ends = running.wait(90)
    assert [each.code for each in ends[:2]] == [0, 0] and "Traceback" not in ends[0].err + ends[1].err, ends


@contextlib.contextmanager
def a_pair() -> Iterator[tuple[HealingStreams, socket.socket]]:
    ours, theirs = socket.socketpair()
    bell, _ = socket.socketpair()
    streams = HealingStreams(ours, False, bell.fileno())
    yield streams, theirs
    streams.close()
    theirs.close()
    bell.close()


@pytest.fixture
def pair() -> object:
    """The streams of one end, and the socket at the other."""
    with a_pair() as made:
        yield made


def test_a_peer_that_says_nothing_makes_memory_grow_to_a_bound() -> None:
    """It reads all, and never says what it has: the sender waits, and its time limit counts."""
    def reads(theirs: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while theirs.recv(1 << 20):
                pass

    for seconds in (0.5, 5.0, 20.0):  # a busy machine may take longer to that bound
        with a_pair() as (streams, theirs):
            threading.Thread(target=reads, args=(theirs,), daemon=True).start()
            end = End(0, [None, Side(streams.send, streams.recv, streams)])
            assert end.send(np.zeros(64 << 20, np.uint8), timeout=seconds) == "timeout"
            sent, acked, room = streams.kept
        if sent == room:
            break
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


@pytest.mark.parametrize("check", ["payload", ""])
def test_bits_that_flip_are_found(check: str) -> None:
    """A relay ends the TCP connections on both sides, so that TCP finds nothing: without the check sums are wrong."""
    ends = storms.flip(100, 3e-7, 0, check)
    if check:
        assert all(each[:2] == ["end", "0"] for each in ends) and any(int(each[2]) for each in ends), ends
    else:
        assert any(each[0] == "error" or int(each[1]) for each in ends), ends


@pytest.mark.more
@pytest.mark.parametrize(("what", "count"), [("cuts", 3000), ("flips", 3000)])
def test_a_part_of_a_storm(what: str, count: int) -> None:
    storms.main([what, "--count", str(count), "--seed", "7"])


NAMED = """
import json, logging, os, socket
import numpy as np, hocket
from hocket.observe.metrics.prometheus import serve
from hocket.tools import top
from support import cutting      # it patches modules
logging.getLogger("hocket").setLevel(logging.ERROR)
cutting.enter()
def told(comm):                     # while its marks are among a recorder's latest
    rows = [row for rows in top.as_json(top.look())["jobs"].values() for row in rows if row["pid"] == os.getpid()]
    marks = {{name: value for row in rows for name, value in row["marks"].items()}}  # this process had other jobs
    path = {trace!r} + ".sock"
    with serve(comm, path=path), socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        client.sendall(b"GET /metrics HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n")
        body = b"".join(iter(lambda: client.recv(65536), b"")).decode()
    return [marks, [line for line in body.splitlines() if "flaps" in line], comm.explain()]
with hocket.init(transport="tcp", timeout=60) as comm:
    with comm.trace({trace!r}):
        end = cutting.now_and_then(0.02, comm.rank)
        healed = comm.world.transports["tcp"].mender.history.healed
        found = [{{}}, [], ""]
        while not comm.allreduce(np.array([any(each.flaps() for each in healed.values())]), "min")[0]:
            comm.allreduce(np.ones(50_000))
        while not comm.allreduce(np.array([comm.rank > 0 or bool(found[0] and found[1])]), "min")[0]:
            found = told(comm) if comm.rank == 0 else found
        end()
    comm.barrier()
    if comm.rank == 0:
        print(json.dumps(found))
    comm.barrier()
"""


def test_a_link_that_flaps_is_named_by_all_that_tell_of_links(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(tmp_path / "t.json")
    outs = jobs.run(2, NAMED.format(trace=trace), 90, PYTHONPATH=worlds.PATH, HOCKET_LOST_AFTER=storms.LIMIT)
    marks, metrics, explained = json.loads(outs[0])
    assert marks["link to rank 1 flaps"] >= 5 and ", flaps" in explained
    assert any('mark="link to rank 1 flaps"' in line for line in metrics), metrics
    assert report.main([trace]) == 0
    said = capsys.readouterr().out
    assert re.search(r"The link from rank 0 to rank 1 broke \d+ times, .* it flaps, look at the cable", said), said


BETWEEN = """
import logging, socket
import numpy as np, hocket
from hocket.errors import TransportError
from hocket.transports.tcp import mending
from support import cutting      # it patches modules
logging.getLogger("hocket").setLevel(logging.ERROR)
answers, refused, answer = [], [], mending.answer
def counted(*given):
    try:
        return answer(*given)
    except TransportError as why:
        refused.append(str(why))
        raise
mending.answer = counted
class Between(cutting.Relay):
    def _carry(self, source, target):
        if source is self._link and source.hello.purpose.startswith("tcr:"):
            word = source.recv(25, socket.MSG_WAITALL)
            answers.append(word)
            if len(answers) % 3 == 1 and len(word) == 25:
                word = word[:8] + bytes([word[8] ^ 1]) + word[9:]
            elif len(answers) % 3 == 2:
                word = answers[0]
            target.sendall(word)
        super()._carry(source, target)
cutting.enter(Between)
with hocket.init(transport="tcp", timeout=60) as comm:
    end = cutting.now_and_then(0.01, comm.rank)
    healed = 0
    while healed < 20:
        x = np.arange(50_000.0) + comm.rank
        assert (comm.allreduce(x) == 2 * np.arange(50_000) + 1).all()
        times = [each.times for each in comm.world.transports["tcp"].mender.history.healed.values()]
        healed = comm.allreduce(np.array([sum(times)]))[0]
    end()
    comm.barrier()
    print("refused", sum("somebody is in between" in why for why in refused))
"""


def test_who_alters_or_swaps_the_answers_of_new_connections_moves_nothing() -> None:
    """One answer in three is altered, one is an old one again: each link goes on where it was."""
    outs = jobs.run(2, BETWEEN, 90, PYTHONPATH=worlds.PATH, HOCKET_LOST_AFTER=storms.LIMIT)
    assert sum(int(out.split()[1]) for out in outs) >= 10, outs
