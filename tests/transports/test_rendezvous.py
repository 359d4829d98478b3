"""Rendezvous and session with real processes, real sockets and real kills."""

import contextlib
import json
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time

import holding
import pytest

from hocket.errors import ArgumentError
from hocket.errors import TimeoutError as HocketTimeout
from hocket.transports import rendezvous
from hocket.transports.faults import Faults
from hocket.transports.messages import ALIVE

RANK = """
import json, os, sys, threading, time
from hocket.transports import rendezvous
spec = json.loads(sys.argv[1])
rendezvous.WRONG_KEY = spec["wrong_key"]
lock = threading.Lock()
def tell(**what):
    with lock:
        print(json.dumps(what), flush=True)
def attempt(call, *args):
    try:
        return {"done": call(*args)}
    except Exception as why:
        gone = list(getattr(why, "missing", getattr(why, "ranks", ())))
        return {"error": type(why).__name__, "text": str(why), "gone": gone}
key = bytes.fromhex(spec["key"]) if spec["key"] else None
made = attempt(rendezvous.join, spec["rank"], spec["size"], spec["address"], key, spec["job"], spec["timeout"])
if "error" in made:
    tell(**made)
    sys.exit(1)
session = made["done"]
session.on_stop = lambda fault: tell(stop=fault) or {"state": "idle", "me": session.rank}
session.on_verdict = lambda verdict: tell(verdict=verdict)
session.on_left = lambda rank: tell(left=rank)
tell(joined=session.key.hex(), lost=list(session.lost))
for line in sys.stdin:
    command, *args = json.loads(line)
    if command == "fork":
        if os.fork() == 0:
            session.close()
            os.close(1)
            time.sleep(2)
            os._exit(0)
        tell(done=None)
    else:
        tell(**attempt(getattr(session, command), *args))
"""


class Rank:
    """One process that joins and then does what it is told; `hear(kind)` is the next thing of that kind it tells."""

    def __init__(self, rank, size, address, key=None, timeout=10.0, job="job", wrong_key=5.0):
        spec = {"rank": rank, "size": size, "address": address, "key": key and key.hex(), "job": job}
        spec |= {"timeout": timeout, "wrong_key": wrong_key}
        self.rank, self.told, self.kept = rank, queue.Queue(), []
        self.process = subprocess.Popen(
            [sys.executable, "-c", RANK, json.dumps(spec)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.listener = threading.Thread(target=self.listen, daemon=True)
        self.listener.start()

    def listen(self):
        for line in self.process.stdout:
            self.told.put(json.loads(line))

    def hear(self, kind, timeout=8.0):
        for event in self.kept:
            if kind in event:
                self.kept.remove(event)
                return event if kind == "error" else event[kind]
        end = time.monotonic() + timeout
        while True:
            try:
                event = self.told.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"rank {self.rank} did not tell {kind}, only {self.kept}") from None
            if kind in event:
                return event if kind == "error" else event[kind]
            self.kept.append(event)

    def silent(self, kind, seconds=0.3):
        with pytest.raises(AssertionError):
            self.hear(kind, seconds)

    def tell(self, *command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def end(self):
        with contextlib.suppress(OSError):
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.listener.join(4)  # a forked child may hold the other end
        self.process.stdout.close()


@pytest.fixture
def start():
    """start(size, ...) starts ranks 0..size-1; start.one(rank, ...) a single one."""
    ranks = []

    def one(*args, **kw):
        ranks.append(Rank(*args, **kw))
        return ranks[-1]

    def all_of(size, address, **kw):
        made = [one(rank, size, address, **kw) for rank in range(size)]
        assert len({rank.hear("joined") for rank in made}) == 1, "all have the same session key"
        return made

    all_of.one = one
    yield all_of
    for rank in ranks:
        rank.end()


@pytest.fixture
def unix(tmp_path):
    return ("unix", str(tmp_path / "d" / "hub"))


@pytest.fixture
def ports():
    """Some TCP ports that are free now, one after the other; below those that outgoing connections take."""
    for first in random.sample(range(20000, 30000, 3), 100):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + 3):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return [first, first + 1, first + 2]
    raise AssertionError("no three free ports")


def eventually(address):
    """A connection to whoever will listen there soon."""
    for _ in range(200):
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(address)
        time.sleep(0.05)
    raise AssertionError(f"nobody listens at {address}")


KEY = bytes(range(32))


def exchanged(ranks, round_):
    for rank in ranks:
        rank.tell("exchange", {"from": rank.rank, "round": round_}, 5)
    for rank in ranks:
        assert rank.hear("done") == [{"from": r, "round": round_} for r in range(len(ranks))]


def fault(comm="world", ranks=(0, 1, 2), **more):
    return {"kind": "timeout", "comm": comm, "seq": 7, "ranks": list(ranks), "text": "too long", **more}


# --- meeting ---


@pytest.mark.parametrize("transport", ["unix", "unix with key", "tcp"])
def test_all_meet_exchange_and_leave(start, unix, ports, transport):
    tcp = ("tcp", "127.0.0.1", ports)
    address, key = {"unix": (unix, None), "unix with key": (unix, KEY), "tcp": (tcp, KEY)}[transport]
    ranks = start(4, address, key=key)
    assert not os.path.exists(unix[1]), "the hub still listens"
    for round_ in range(3):
        exchanged(ranks, round_)
    began = time.monotonic()
    for rank in ranks:
        rank.tell("close")
    for rank in ranks:
        rank.hear("done")
        rank.silent("verdict", 0.05)
    assert time.monotonic() - began < 1.5
    assert rank.process.poll() is None


def test_a_session_key_is_new_every_time(start, ports):
    first = start.one(0, 1, ("tcp", "127.0.0.1", ports), key=KEY).hear("joined")
    second = start.one(0, 1, ("tcp", "127.0.0.1", ports), key=KEY).hear("joined")
    assert len({first, second, KEY.hex()}) == 3


def test_missing_ranks_are_named_on_all_who_came(start, unix):
    came = [start.one(rank, 4, unix, timeout=1.0) for rank in (0, 2)]
    for rank in came:
        told = rank.hear("error")
        assert told["error"] == "TimeoutError" and told["gone"] == [1, 3] and "[1, 3] did not come" in told["text"]
    assert not os.path.exists(unix[1])


def test_a_member_whose_time_is_over_first_names_them_too(start, unix):
    hub = start.one(0, 3, unix, timeout=2.0)
    told = start.one(2, 3, unix, timeout=1.0).hear("error")
    assert told["error"] == "TimeoutError" and told["gone"] == [1]
    assert hub.hear("error")["gone"] == [1], "rank 2 had come"


def test_a_rank_that_gave_up_or_died_may_come_again(start, unix):
    first = start.one(0, 3, unix)
    start.one(2, 3, unix, timeout=0.5).hear("error")
    dies = start.one(1, 3, unix)
    time.sleep(0.5)
    dies.process.kill()
    for rank in [first, start.one(1, 3, unix), start.one(2, 3, unix)]:
        rank.hear("joined")


def test_no_rank_0_at_all(start, unix):
    told = start.one(1, 2, unix, timeout=0.5).hear("error")
    assert told["error"] == "TimeoutError" and told["gone"] == [0] and "ENOENT" in told["text"]


def test_a_duplicate_rank_is_told_and_the_job_goes_on(start, unix):
    first = [start.one(0, 3, unix), start.one(1, 3, unix)]
    time.sleep(0.5)
    told = start.one(1, 3, unix).hear("error")
    assert told["error"] == "ArgumentError"
    assert f"rank 1 is taken by process {first[1].process.pid}" in told["text"]
    last = start.one(2, 3, unix)
    for rank in [*first, last]:
        rank.hear("joined")
    exchanged([*first, last], 0)


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_a_second_rank_0_is_told(start, unix, ports, transport):
    address, key = (unix, None) if transport == "unix" else (("tcp", "127.0.0.1", ports), KEY)
    first = start.one(0, 2, address, key=key)
    time.sleep(0.5)
    told = start.one(0, 2, address, key=key).hear("error")
    assert told["error"] == "ArgumentError" and f"rank 0 is taken by process {first.process.pid}" in told["text"]
    start.one(1, 2, address, key=key).hear("joined")


def test_another_size_is_told(start, unix):
    start.one(0, 3, unix)
    told = start.one(1, 4, unix).hear("error")
    assert told["error"] == "ArgumentError" and "came with size 4, but rank 0 with size 3" in told["text"]


def test_wrong_key_is_told(start, ports):
    start.one(0, 2, ("tcp", "127.0.0.1", ports[0]), key=KEY)
    time.sleep(0.3)
    told = start.one(1, 2, ("tcp", "127.0.0.1", ports[0]), key=b"x" * 32, wrong_key=0.5).hear("error")
    assert told["error"] == "AuthError" and "HOCKET_SECRET" in told["text"]


def test_strangers_on_the_candidate_ports_do_not_confuse(start, ports):
    with socket.socket() as silent, socket.socket() as web:
        for sock, port in ((silent, ports[0]), (web, ports[1])):
            sock.bind(("127.0.0.1", port))
            sock.listen()

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    conn, _ = web.accept()
                    conn.sendall(b"HTTP/1.1 400 Bad Request\r\n" + b"x" * 300)
                    conn.close()

        threading.Thread(target=serve, daemon=True).start()
        ranks = start(3, ("tcp", "127.0.0.1", ports), key=KEY)
        exchanged(ranks, 0)
        web.shutdown(socket.SHUT_RDWR)


def test_another_jobs_hub_with_the_same_key_is_passed_by(start, ports):
    start.one(0, 2, ("tcp", "127.0.0.1", ports), key=KEY, job="other")
    time.sleep(0.4)
    ranks = [start.one(rank, 2, ("tcp", "127.0.0.1", ports), key=KEY, job="mine") for rank in (0, 1)]
    for rank in ranks:
        rank.hear("joined")


def test_junk_at_the_hub_while_a_job_comes_together(start, ports):
    address = ("127.0.0.1", ports[0])
    ranks = [start.one(rank, 3, ("tcp", *address), key=KEY) for rank in (0, 1)]
    idle = [eventually(address)] + [socket.create_connection(address) for _ in range(199)]
    for number in range(100):
        with socket.create_connection(address) as sock, contextlib.suppress(OSError):
            sock.sendall([b"GET / HTTP/1.0\r\n\r\n", os.urandom(500), b""][number % 3])
    ranks.append(start.one(2, 3, ("tcp", *address), key=KEY))
    for rank in ranks:
        rank.hear("joined")
    exchanged(ranks, 0)
    for sock in idle:
        sock.close()


def test_bad_arguments():
    with pytest.raises(ArgumentError, match="outside of 0..1"):
        rendezvous.join(2, 2, ("unix", "/x"), None, "j", 1)
    with pytest.raises(ArgumentError, match="HOCKET_SECRET"):
        rendezvous.join(0, 2, ("tcp", "127.0.0.1", 0), None, "j", 1)


def test_joining_and_leaving_leaks_no_descriptor_and_no_thread(unix):
    def member(rank):
        session = rendezvous.join(rank, 3, unix, None, "j", 5)
        assert session.exchange(rank, 5) == [0, 1, 2]
        session.close()
        session.close()

    before = holding.descriptors(), holding.threads()
    for _ in range(5):
        ranks = [threading.Thread(target=member, args=(rank,)) for rank in range(3)]
        for thread in ranks:
            thread.start()
        for thread in ranks:
            thread.join()
        with pytest.raises(HocketTimeout):
            rendezvous.join(0, 2, unix, None, "j", 0.05)
        with pytest.raises(HocketTimeout):
            rendezvous.join(1, 2, unix, None, "j", 0.05)
    assert holding.descriptors() <= before[0] and holding.threads() <= before[1]


def test_control_connections_notice_a_vanished_host(ports):
    sessions = {}
    address = ("tcp", "127.0.0.1", ports[0])
    other = threading.Thread(target=lambda: sessions.update({1: rendezvous.join(1, 2, address, KEY, "j", 5)}))
    other.start()
    sessions[0] = rendezvous.join(0, 2, address, KEY, "j", 5)
    other.join()
    for sock in (sessions[1]._link._sock, sessions[0]._hub._links[1]._sock):
        assert all(sock.getsockopt(level, option) == value for level, option, value in ALIVE)
    for rank in (1, 0):
        sessions[rank].close()


# --- losses ---


def test_a_killed_member_is_told_to_all_at_once(start, unix):
    ranks = start(4, unix)
    ranks[3].tell("exchange", "I wait", 30)
    time.sleep(0.1)
    began = time.monotonic()
    ranks[2].process.kill()
    for rank in (ranks[0], ranks[1], ranks[3]):
        verdict = rank.hear("verdict")
        assert verdict["kind"] == "lost" and verdict["lost"] == [2] and "process ended" in verdict["how"]
    told = ranks[3].hear("error")
    assert told["error"] == "PeerLostError" and told["gone"] == [2]
    assert time.monotonic() - began < 1
    ranks[1].process.kill()
    verdict = ranks[0].hear("verdict")
    assert verdict["lost"] == [1, 2] and verdict["new"] == [1]


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_a_killed_rank_0_is_noticed_by_each(start, unix, ports, transport):
    address, key = (unix, None) if transport == "unix" else (("tcp", "127.0.0.1", ports), KEY)
    ranks = start(3, address, key=key)
    began = time.monotonic()
    ranks[0].process.kill()
    for rank in ranks[1:]:
        verdict = rank.hear("verdict")
        assert verdict["kind"] == "lost" and verdict["lost"] == [0]
        rank.tell("exchange", 1, 5)
        told = rank.hear("error")
        assert told["error"] == "PeerLostError" and told["gone"] == [0]
        rank.tell("close")
        rank.hear("done")
    assert time.monotonic() - began < 1.5


def test_a_killed_rank_is_noticed_though_its_forked_child_lives(start, unix):
    ranks = start(3, unix)
    for rank in ranks[:2]:
        rank.tell("fork")
        rank.hear("done")
    ranks[1].process.kill()
    assert ranks[2].hear("verdict", 1)["lost"] == [1]
    ranks[0].process.kill()
    assert ranks[2].hear("verdict", 0.8)["lost"] == [0, 1]


def test_leaving_is_not_dying(start, unix):
    ranks = start(3, unix)
    ranks[1].tell("close")
    ranks[1].hear("done")
    ranks[1].process.kill()
    for rank in (ranks[0], ranks[2]):
        assert rank.hear("left") == 1
    ranks[0].tell("close")  # waits for rank 2, whose process has not said goodbye, and leaves without it
    assert ranks[2].hear("left") == 0
    ranks[0].silent("done", 1.0)
    ranks[0].hear("done", 2.5)
    ranks[0].process.kill()
    ranks[2].silent("verdict")
    ranks[2].tell("close")
    ranks[2].hear("done")


def test_rank_0_waits_for_late_goodbyes(start, unix):
    ranks = start(2, unix)
    ranks[0].tell("close")
    time.sleep(0.5)
    ranks[1].tell("close")
    began = time.monotonic()
    ranks[0].hear("done")
    assert time.monotonic() - began < 1
    ranks[1].silent("verdict", 0.1)


def test_an_exchange_names_who_did_not_come(start, unix):
    ranks = start(3, unix)
    ranks[0].tell("exchange", 0, 0.4)
    ranks[1].tell("exchange", 1, 0.4)
    for rank in ranks[:2]:
        told = rank.hear("error")
        assert told["error"] == "TimeoutError" and told["gone"] == [2] and "rank 2 had not come" in told["text"]


def test_values_too_long_together_are_refused_on_all(start, unix):
    ranks = start(2, unix)
    for rank in ranks:
        rank.tell("exchange", "x" * (9 << 20), 8)
    for rank in ranks:
        assert rank.hear("error")["error"] == "ArgumentError"
    for rank in ranks:
        rank.tell("exchange", "y" * (2 << 20), 8)
    for rank in ranks:
        assert [len(value) for value in rank.hear("done")] == [2 << 20] * 2


# --- faults ---


def test_a_fault_stops_its_ranks_and_becomes_one_verdict(start, unix):
    ranks = start(4, unix)
    ranks[1].tell("report", fault(account={"state": "in call", "call": "allreduce"}))
    ranks[2].tell("report", fault(kind="error", text="second", account={"state": "in call", "call": "broadcast"}))
    for rank in ranks[:3]:
        stop = rank.hear("stop")
        assert stop["comm"] == "world" and stop["kind"] in ("timeout", "error")
        verdict = rank.hear("verdict")
        assert verdict["by"] in (1, 2) and verdict["seq"] == 7 and set(verdict["accounts"]) == {"0", "1", "2"}
        assert verdict["accounts"]["0"] == {"state": "idle", "me": 0}
        assert verdict["accounts"][str(verdict["by"])]["state"] == "in call"
        rank.silent("verdict", 0.1)
    ranks[3].silent("stop", 0.1)
    ranks[0].silent("verdict", 0.6)  # nor another when the time to gather is over
    ranks[3].tell("report", fault(comm="other", ranks=(3,)))
    assert ranks[3].hear("verdict")["accounts"] == {"3": {"state": "idle", "me": 3}}


def test_a_stopped_process_gives_no_answer_and_is_not_lost(start, unix):
    ranks = start(3, unix)
    ranks[2].process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    ranks[0].tell("report", fault())
    for rank in ranks[:2]:
        verdict = rank.hear("verdict")
        assert verdict["kind"] == "timeout" and verdict["accounts"]["2"] == {"state": "no answer"}
        assert verdict["accounts"]["1"] == {"state": "idle", "me": 1}
    assert 0.3 < time.monotonic() - began < 1.5
    ranks[2].process.send_signal(signal.SIGCONT)
    assert ranks[2].hear("verdict")["by"] == 0


def test_the_lost_and_the_left_are_not_waited_for(start, unix):
    ranks = start(4, unix)
    ranks[2].process.kill()
    ranks[3].tell("close")
    for rank in ranks[:2]:
        rank.hear("verdict")
        rank.hear("left")
    began = time.monotonic()
    ranks[0].tell("report", fault(ranks=range(4)))
    accounts = ranks[1].hear("verdict", 2)["accounts"]
    assert time.monotonic() - began < 0.3
    assert accounts["2"] == {"state": "lost"} and accounts["3"] == {"state": "left"}


def test_two_that_wait_for_different_things_are_a_mismatch(start, unix):
    ranks = start(3, unix)
    info = {"comm": "world", "seq": 5, "ranks": [0, 1, 2]}
    for rank, word in ((0, "sum"), (1, "sum"), (2, "max")):
        ranks[rank].tell("stuck", {**info, "fingerprint": word, "account": {"state": "in call", "call": word}})
    for rank in ranks:
        verdict = rank.hear("verdict")
        assert verdict["kind"] == "mismatch" and verdict["seq"] == 5
        assert verdict["accounts"]["2"]["call"] == "max"
        assert "called different things in call 5 of world" in verdict["text"]


def test_stuck_reports_of_older_calls_are_forgotten():
    sent = []
    faults = Faults(lambda rank, message: sent.append((rank, message)), lambda seconds, call: None, {})
    info = {"comm": "c", "ranks": [0, 1], "account": {"state": "in call"}}
    faults.stuck(0, {**info, "seq": 1, "fingerprint": "a"})
    faults.stuck(0, {**info, "seq": 2, "fingerprint": "b"})
    faults.stuck(1, {**info, "seq": 1, "fingerprint": "z"})
    assert not sent
    faults.stuck(1, {**info, "seq": 2, "fingerprint": "c"})
    assert [message["verdict"]["kind"] for _, message in sent if "verdict" in message] == ["mismatch"] * 2


def test_a_malformed_report_disturbs_nobody(start, unix):
    ranks = start(2, unix)
    for words in (("report", {"comm": "c"}), ("stuck", {"comm": "c"}), ("report", 3)):
        ranks[1].tell(*words)
        ranks[1].hear("done")
    exchanged(ranks, 0)
