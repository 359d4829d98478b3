"""Rendezvous with real processes and sockets: all meet, or each is told why not."""

import contextlib
import functools
import os
import socket
import threading
import time
import types

import pytest

from hocket.control import rendezvous
from hocket.control.encryption import SilentEnd
from hocket.control.handshake import AuthError, Hello
from hocket.control.link import TCP_RTO_MAX_MS, ControlLink, alive
from hocket.control.links import Links
from hocket.control.protocol import coordinator
from hocket.control.protocol.membership import PURPOSE
from hocket.control.protocol.messages import Refused, Welcome
from hocket.control.reactor import Reactor
from hocket.control.rendezvous import Identity, Where
from hocket.errors import ArgumentError, PeerLostError, TransportError
from hocket.errors import TimeoutError as HocketTimeout
from hocket.system.machine import wish
from hocket.transports.tcp.transport import tuned
from support import leftovers
from support.controlled import KEY, exchanged

MPTCP = 262
"""IPPROTO_MPTCP."""


def eventually(address):
    """A connection to whoever will listen there soon."""
    for _ in range(200):
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(address)
        time.sleep(0.05)
    raise AssertionError(f"nobody listens at {address}")


@pytest.mark.parametrize("transport", ["unix", "unix with key", "tcp"])
def test_all_meet_exchange_and_leave(start, unix, ports, transport):
    tcp = ("tcp", "127.0.0.1", ports)
    address, key = {"unix": (unix, None), "unix with key": (unix, KEY), "tcp": (tcp, KEY)}[transport]
    limits = [("session", name, 60.0) for name in ("GOODBYE", "LAST_OUT")]  # none is waited for
    ranks = start(4, address, key=key, limits=limits)
    assert not os.path.exists(unix[1]), "the coordinator still listens"
    for round_ in range(3):
        exchanged(ranks, round_)
    for rank in ranks:
        rank.tell("close")
    for rank in ranks:
        rank.hear("done")
        rank.silent("lost", 0.05)
    assert rank.process.poll() is None


def test_a_session_key_is_new_every_time(start, ports):
    first = start.one(0, 1, ("tcp", "127.0.0.1", ports), key=KEY).hear("joined")
    second = start.one(0, 1, ("tcp", "127.0.0.1", ports), key=KEY).hear("joined")
    assert len({first, second, KEY.hex()}) == 3


def test_missing_ranks_are_named_on_all_who_came(start, unix):
    came = [start.one(rank, 4, unix, timeout=timeout, held=True) for rank, timeout in ((0, 3.0), (2, 30.0))]
    for rank in came:
        rank.hear("held")
    for rank in came:
        rank.tell("join")
    for rank in came:
        told = rank.hear("error")
        assert told["error"] == "TimeoutError" and told["gone"] == [1, 3] and "[1, 3] did not come" in told["text"]
        assert (f"at unix:{unix[1]}" in told["text"]) == (rank is came[0])
    assert not os.path.exists(unix[1])


def test_a_member_whose_time_is_over_first_names_them_too(start, unix):
    member = start.one(2, 3, unix, timeout=0.7, held=True)
    member.hear("held")
    coordinator = start.one(0, 3, unix, timeout=4.0)
    coordinator.hear("there")
    member.tell("join")
    told = member.hear("error")
    assert told["error"] == "TimeoutError" and told["gone"] == [1]
    assert coordinator.hear("error")["gone"] == [1], "rank 2 had come"


def test_a_rank_that_gave_up_may_come_again(start, unix):
    first = start.one(0, 3, unix)
    start.one(2, 3, unix, timeout=0.5).hear("error")
    for rank in [first, start.one(1, 3, unix), start.one(2, 3, unix)]:
        rank.hear("joined")


def test_a_late_answer_about_who_is_missing_ends_no_meeting(unix, reactor, monkeypatch):
    """The coordinator's host is busy for longer than its answer is waited for."""
    monkeypatch.setattr(rendezvous, "STILL_WAITING", 0.2)
    monkeypatch.setattr("hocket.control.session.ANSWER", 0.1)
    met = []

    def comes():
        met.append(rendezvous.join(Identity(0, 2, "j", None), Where(unix), 30, reactor))

    first = threading.Thread(target=comes)
    first.start()
    time.sleep(0.1)
    reactor.soon(lambda: time.sleep(0.5))
    first.join(1.0)  # it has the answer by now
    last = rendezvous.join(Identity(1, 2, "j", None), Where(unix), 30)
    first.join()
    last.close()
    met.pop().close()


def test_a_rank_whose_connection_was_cut_comes_again(unix, monkeypatch):
    """It is there again before it counts as dead."""
    monkeypatch.setattr(coordinator, "AGAIN", 30.0)
    sessions, cut, again = {}, [], threading.Event()

    def member(rank):
        sessions[rank] = rendezvous.join(Identity(rank, 3, "j", None), Where(unix), 40)

    class Cut(rendezvous.LinkSession):
        """The first one of rank 1 loses its connection when it has said that it is there."""

        def __init__(self, reactor, sock, rank, *rest):
            super().__init__(reactor, sock, rank, *rest)
            if rank == 1 and not cut:
                cut.append(self)
                reactor.later(0.2, lambda: sock.shutdown(socket.SHUT_RDWR))
            elif rank == 1:
                again.set()

    monkeypatch.setattr(rendezvous, "LinkSession", Cut)
    ranks = [threading.Thread(target=member, args=(rank,)) for rank in range(3)]
    for rank in ranks[:2]:
        rank.start()
    assert again.wait(30)
    ranks[2].start()
    for rank in ranks:
        rank.join()
    assert cut and sorted(sessions) == [0, 1, 2]
    for rank in (2, 1, 0):
        sessions[rank].close()


def come(reactor, links, rank, attempt):
    mine, its = socket.socketpair()
    reactor.soon(lambda: links.take(its, Hello(rank, PURPOSE, "j")))
    return rendezvous.LinkSession(reactor, mine, rank, 2, None, attempt)


def told(session):
    return type(session._wait((Welcome, 0), (Refused, 0), seconds=30.0))


def test_the_end_of_a_connection_is_no_loss_where_the_rank_has_come_again(reactor):
    """Both were seen in one round: the end removed the new connection, and nothing was sent to this rank any more."""
    links = Links(reactor, 2, "j", keyed=False)
    come(reactor, links, 1, "first")
    while not links.here(1):
        time.sleep(0.001)
    first = links._links[1]
    links.joined = lambda rank: first.end("cut")
    session = come(reactor, links, 1, "first")
    assert told(come(reactor, links, 0, "zero")) is Welcome
    assert told(session) is Welcome and not session.gone
    reactor.soon(links.shut)


def test_a_rank_comes_again_though_nobody_noticed_that_its_connection_broke(reactor):
    """Its place was taken, by itself.  It is welcome, or hears that it was lost, or that the meeting is over."""
    links = Links(reactor, 2, "j", keyed=False)
    comes = functools.partial(come, reactor, links)
    comes(1, "first")
    assert told(comes(1, "other")) is Refused
    comes(1, "first")
    assert told(comes(0, "zero")) is Welcome
    session = comes(1, "first")
    assert told(session) is Welcome and not session.gone
    session.ask("c", [])
    assert told(comes(1, "first")) is Refused and not session.ended
    reactor.soon(lambda: session._link.end("cut"))
    while 1 not in links.coordinator.members.gone.lost:
        time.sleep(0.001)
    late = comes(1, "first")
    with pytest.raises(PeerLostError, match="rank 1 was lost"):
        while told(late) is type(None):
            late.look()
    reactor.soon(links.shut)
    over = comes(0, "later")
    assert told(over) is type(None) and over.ended


@pytest.mark.parametrize("transport", ["unix", "tcp"])
@pytest.mark.parametrize("dead", [0, 2])
def test_a_rank_that_dies_while_the_others_meet_is_named_at_once(start, unix, ports, transport, dead):
    """By all who are here, long before their time to meet is over."""
    address, key = (unix, None) if transport == "unix" else (("tcp", "127.0.0.1", ports), KEY)
    ranks = [start.one(rank, 4, address, key=key, timeout=60.0) for rank in range(3)]
    assert sorted(ranks[0].hear("heard") for _ in ranks) == [0, 1, 2]
    ranks[dead].process.kill()
    for rank in ranks:
        if rank.rank != dead:
            told = rank.hear("error", 20.0)  # 0.4 to 0.6 s are waited
            assert told["error"] == "PeerLostError" and told["gone"] == [dead], told


def test_no_rank_0_at_all(start, unix):
    told = start.one(1, 2, unix, timeout=0.5).hear("error")
    assert told["error"] == "TimeoutError" and told["gone"] == [0] and "ENOENT" in told["text"]


def test_a_rank_with_little_time_looks_beside_soon_enough(start, unix, ports, tmp_path, monkeypatch):
    """It sees another folder than rank 0, which listens at both places already."""
    monkeypatch.setattr(rendezvous, "BESIDE", 60.0)
    beside = ("tcp", "127.0.0.1", ports)
    found: list[object] = []
    zero, one = (Identity(rank, 2, "job", KEY) for rank in (0, 1))
    first = threading.Thread(
        target=lambda: found.append(rendezvous.join(zero, Where(unix, [beside]), 30.0)), daemon=True)
    first.start()
    eventually(("127.0.0.1", ports[0])).close()
    found.append(rendezvous.join(one, Where(("unix", str(tmp_path / "other")), [beside]), 5.0))
    first.join(30)
    assert len(found) == 2
    for session in found:
        session.close()


def test_a_duplicate_rank_is_told_and_the_job_goes_on(start, unix):
    first = [start.one(0, 3, unix), start.one(1, 3, unix)]
    assert sorted(first[0].hear("heard") for _ in first) == [0, 1]
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
    first.hear("there")
    told = start.one(0, 2, address, key=key).hear("error")
    assert told["error"] == "ArgumentError" and f"rank 0 is taken by process {first.process.pid}" in told["text"]
    start.one(1, 2, address, key=key).hear("joined")


def test_another_size_is_told(start, unix):
    start.one(0, 3, unix)
    told = start.one(1, 4, unix).hear("error")
    assert told["error"] == "ArgumentError" and "came with size 4, but rank 0 with size 3" in told["text"]


def test_wrong_key_is_told(start, ports):
    start.one(0, 2, ("tcp", "127.0.0.1", ports[0]), key=KEY).hear("there")
    told = start.one(1, 2, ("tcp", "127.0.0.1", ports[0]), key=b"x" * 32, wrong_key=0.5).hear("error")
    assert told["error"] == "AuthError" and "HOCKET_SECRET" in told["text"]


def test_one_strange_answer_of_a_late_rank_0_is_not_believed(monkeypatch):
    """The end of a slow rank's handshake looks like another key; only who says so for a while is believed."""
    now = [0.0]
    clock = types.SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + seconds))
    monkeypatch.setattr(rendezvous, "time", clock)
    said = [TransportError("not up")] * 25 + [AuthError("ended"), None]

    def knock(address):
        if error := said.pop(0):
            raise error

    meet = rendezvous.Meet(Identity(1, 2, "job", KEY), Where(("tcp", "127.0.0.1", 1)), 10, None)
    monkeypatch.setattr(meet, "patience", 0.2)
    monkeypatch.setattr(meet, "knock", knock)
    monkeypatch.setattr(meet, "_settle", lambda session: "met")
    assert meet.find() == "met"


def test_what_a_refusing_rank_0_said_outlives_its_end(monkeypatch):
    """Rank 0 refuses this one, then gives up and only closes what comes: the error keeps its words."""
    said = [AuthError("unknown ca"), SilentEnd("closed")]

    def knock(address):
        raise said.pop(0) if len(said) > 1 else said[0]

    meet = rendezvous.Meet(Identity(1, 2, "job", KEY), Where(("tcp", "127.0.0.1", 1)), 10, None)
    monkeypatch.setattr(meet, "patience", 0.1)
    monkeypatch.setattr(meet, "knock", knock)
    with pytest.raises(AuthError, match="unknown ca"):
        meet.find()


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
        ranks = start(3, ("tcp", "127.0.0.1", ports), key=KEY, limits=[("rendezvous", "KNOCK", 0.3)])
        exchanged(ranks, 0)
        web.shutdown(socket.SHUT_RDWR)


def test_another_jobs_coordinator_with_the_same_key_is_passed_by(start, ports):
    start.one(0, 2, ("tcp", "127.0.0.1", ports), key=KEY, job="other").hear("there")
    ranks = [start.one(rank, 2, ("tcp", "127.0.0.1", ports), key=KEY, job="mine") for rank in (0, 1)]
    for rank in ranks:
        rank.hear("joined")


def test_junk_at_the_coordinator_while_a_job_comes_together(start, ports):
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
    with pytest.raises(ArgumentError, match="not one of 0..1"):
        rendezvous.join(Identity(2, 2, "j", None), Where(("unix", "/x")), 1)
    with pytest.raises(ArgumentError, match="HOCKET_SECRET"):
        rendezvous.join(Identity(0, 2, "j", None), Where(("tcp", "127.0.0.1", 0)), 1)


def test_joining_and_leaving_leaks_no_descriptor_and_no_thread(unix):
    def member(rank):
        session = rendezvous.join(Identity(rank, 3, "j", None), Where(unix), 30)
        assert session.exchange(rank, 30) == [0, 1, 2]
        session.close()
        session.close()

    before = leftovers.descriptors(), leftovers.threads()
    for _ in range(5):
        ranks = [threading.Thread(target=member, args=(rank,)) for rank in range(3)]
        for thread in ranks:
            thread.start()
        for thread in ranks:
            thread.join()
        with pytest.raises(HocketTimeout):
            rendezvous.join(Identity(0, 2, "j", None), Where(unix), 0.05)
        with pytest.raises(HocketTimeout):
            rendezvous.join(Identity(1, 2, "j", None), Where(unix), 0.05)
    assert leftovers.descriptors() <= before[0] and leftovers.threads() <= before[1]


def test_rank_0_may_listen_on_another_of_the_hosts_that_are_known(ports):
    """Slurm's list of nodes does not say on which of them rank 0 is."""
    sessions = {}

    def join(rank, *hosts):
        first, *also = [("tcp", host, ports) for host in hosts]
        sessions[rank] = rendezvous.join(Identity(rank, 2, "j", KEY), Where(first, also), 30)

    other = threading.Thread(target=join, args=(1, "127.0.0.3", "no-such-host.invalid", "127.0.0.2"))
    other.start()
    join(0, "127.0.0.2")
    other.join()
    assert sorted(sessions) == [0, 1]
    for rank in (1, 0):
        sessions[rank].close()


def test_an_option_that_the_system_refuses_ends_nothing():
    """MPTCP's sockets, which `mptcpize run` gives to every program, have no TCP_USER_TIMEOUT and no TCP_QUICKACK."""
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, MPTCP).close()
        kind = MPTCP
    except OSError:  # a kernel without it: a socket of another kind refuses them, too
        kind = 0
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, kind) as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM, kind) as other:
            other.connect(one.getsockname())
            link = ControlLink(Reactor(), other)
            assert other.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            tuned(other)
            assert other.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
            link._reactor.close()
    wish(one, socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # it is closed


def test_control_connections_notice_a_vanished_host(ports):
    sessions = {}
    address = ("tcp", "127.0.0.1", ports[0])
    def join(rank):
        sessions[rank] = rendezvous.join(Identity(rank, 2, "j", KEY), Where(address), 30)

    other = threading.Thread(target=join, args=(1,))
    other.start()
    join(0)
    other.join()
    for sock in (sessions[1]._link._sock, sessions[0]._links._links[1]._sock):
        assert all(sock.getsockopt(level, option) == value for level, option, value in alive(5.0)
                   if option != TCP_RTO_MAX_MS)
    for rank in (1, 0):
        sessions[rank].close()
