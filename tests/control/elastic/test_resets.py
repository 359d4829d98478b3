"""A connection that breaks between two that live is a loss at no moment of its life, nor of the job's.

Members are in one process here, each with a host and a thread of its own, and their connections are real.
"""

from __future__ import annotations

import contextlib
import random
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hocket.control import dial, rendezvous
from hocket.control.elastic import entering, meeting, members
from hocket.control.elastic.mesh import Mesh
from hocket.control.elastic.reaching import Own, address_of
from hocket.control.protocol.generations import Generation
from hocket.control.protocol.words import Call, Made
from hocket.control.reactor import Reactor
from hocket.control.secret import read_text
from hocket.control.session import LinkSession

OWN = Own("a job", read_text("a secret of the tests of resets"), False, [("tcp", "127.0.0.1", 0)])
LOST_AFTER = 30.0
"""Seconds: a busy machine may not come to anything for some."""


def member(host: int) -> Mesh:
    reactor = Reactor()
    reactor.lost_after = LOST_AFTER
    made = Mesh(reactor, OWN)
    made.seat = made.seat._replace(host=f"host {host}")
    return made


@contextlib.contextmanager
def job(size: int) -> Iterator[list[Mesh]]:
    """Members that are connected.  Nobody may ever be away."""
    crowd = [member(i) for i in range(size)]
    try:
        for each in crowd:
            each.begin(Generation(0, [other.seat for other in crowd], each.uid), met=0)
        until(crowd, lambda: linked(crowd))
        yield crowd
    finally:
        for each in crowd:
            each.close()
            each.reactor.close()


def linked(crowd: list[Mesh]) -> bool:
    return all(len(each._links) == len(crowd) - 1 for each in crowd)


def until(crowd: list[Mesh], true: Any, seconds: float = 40.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        assert not any(each.generations.away for each in crowd if each.generations is not None)
        time.sleep(0.001)


def reset(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def cut(one: Mesh, share: float = 1.0) -> None:
    """This one's connections with members, or a share of them."""
    links = list(one._links.values())
    for link in random.sample(links, max(1, round(share * len(links)))) if links else []:
        one.reactor.soon(lambda link=link: reset(link._sock))  # type: ignore[misc]


def slowly(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Connections take so long to be made."""
    real = members.reach_any
    monkeypatch.setattr(members, "reach_any", lambda *args: (time.sleep(seconds), real(*args))[1])


def test_who_is_cut_off_as_all_are_to_have_come_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was away at once: a round of that moment left it out, and so did the generation that followed."""
    with job(3) as crowd:
        slowly(monkeypatch, 0.4)
        cut(crowd[1])
        until(crowd, lambda: not any(crowd[1].uid in each._links for each in crowd) and not crowd[1]._links)
        looked: list[int] = []
        for each in crowd:  # the moment at which all are to have come
            each.reactor.soon(lambda each=each: (each._who_came(each.now.number), looked.append(1)))  # type: ignore[misc]
        until(crowd, lambda: linked(crowd) and len(looked) == len(crowd))


def test_who_has_come_is_known_behind_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody had heard that more than half were here, so all waited for the late one, to the end of their time."""
    with job(4) as crowd, ThreadPoolExecutor() as pool:
        slowly(monkeypatch, 0.1)
        cut(crowd[2])
        until(crowd, lambda: not any(crowd[2].uid in each._links for each in crowd))
        came = [pool.submit(each.come, Call(i), 0.3, time.monotonic() + 60.0) for i, each in enumerate(crowd[:3])]
        for each in came:
            made = each.result(30.0)
            assert isinstance(made, Made) and made.members == (0, 1, 2) and made.lost == ((3, "late"),)


def test_a_goodbye_goes_over_the_next_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that left was taken for silent, and without it the other one of two could not go on."""
    monkeypatch.setattr(members, "HEARD", 30.0)
    with job(2) as (one, other):
        before = [*one._links.values()]
        cut(one)
        until([one, other], lambda: not any(each in before for each in one._links.values()))  # the next may be there
        one.close()
        until([other], lambda: other.generations is not None and other.generations.gone)
        assert other.generations is not None and other.generations.gone == {one.uid: True}


def test_who_is_killed_loses_its_sockets_before_the_kernel_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was "unreachable" then, to all, where it is dead."""

    def refused(*_: Any) -> socket.socket:
        raise members.NobodyListens("refused")

    real = member
    monkeypatch.setattr(sys.modules[__name__], "member", lambda host: real(0))  # on one host
    with job(2) as (one, other):
        monkeypatch.setattr(members, "reach_any", refused)
        cut(other)
        until([], lambda: not one._links and not other._links)
        later = time.monotonic() + 0.3
        until([one, other], lambda: time.monotonic() > later)
        one.reactor.soon(lambda: one._ended(other.uid))
        until([one], lambda: one.generations is not None and one.generations.gone == {other.uid: False})
        monkeypatch.setattr(members, "PROOF", (0.0, 0.0))
        until([], lambda: other.generations is not None and other.generations.away == {one.uid})  # no kernel says so


@pytest.mark.parametrize("moment", ["before the hello", "before the proof", "behind the proof"])
def test_a_connection_may_break_while_it_is_made(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one's first three."""
    broke: dict[bytes, int] = {}

    def breaks(sock: socket.socket, client: Any, *rest: Any) -> None:
        hello = client.start[:40]
        broke[hello] = broke.get(hello, 0) + 1

        def feed(data: bytes) -> bytes:
            reset(sock)
            return bytes(32)

        if broke[hello] > 3:
            real(sock, client, *rest)
        elif moment == "before the hello":
            reset(sock)
            real(sock, client, *rest)
        elif moment == "before the proof":
            monkeypatch.setattr(client, "feed", feed)
            real(sock, client, *rest)
        else:
            real(sock, client, *rest)
            reset(sock)

    real = dial._introduce
    monkeypatch.setattr(dial, "_introduce", breaks)
    with job(3):
        assert {*broke.values()} and max(broke.values()) > 3


def test_all_go_on_and_a_newcomer_comes_in_whatever_breaks_when() -> None:
    over, dice = threading.Event(), random.Random(1)

    def lives(one: Mesh) -> None:
        """Until the newcomer is let in."""
        while len(one.now.seats) == 3:
            for _ in range(3):
                made = one.come(Call(), 30.0, time.monotonic() + 60.0)
                assert made is None or len(made.members) == len(one.now.seats), made
            generation = one.agree(lambda now: Call(), time.monotonic() + 60.0)
            assert generation is not None and not generation.lost
            one.met = generation.number

    def breaks() -> None:
        while not over.wait(dice.uniform(0, 0.1)):
            cut(dice.choice(crowd), dice.choice([0.3, 1.0]))
            for each in crowd:
                for link in list(each._guests.values()):
                    each.reactor.soon(lambda link=link: reset(link._sock))  # type: ignore[misc]

    with job(3) as crowd, ThreadPoolExecutor() as pool:
        doors, new = [address_of(place) for each in crowd for place in each.seat.addresses], member(9)
        try:
            pool.submit(breaks)
            time.sleep(0.2)
            lived = [pool.submit(lives, each) for each in crowd]
            entered = pool.submit(entering.enter, new, lambda: doors, 60.0)
            for each in (*lived, entered):
                each.result(90.0)
            assert crowd[0].now.number > 0
        finally:
            over.set()
            new.close()
            new.reactor.close()


def test_a_connection_may_break_before_its_rank_knows_that_it_is_welcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """The welcome came before the rank had said by which way its connection is made again, and so none was."""
    real, made = rendezvous.Meet.session, list[LinkSession]()

    def healed(session: LinkSession) -> bool:
        return session._link.on_break.__name__ == "_begin"

    def late(one: rendezvous.Meet, sock: socket.socket) -> LinkSession:
        made.append(session := real(one, sock))
        if session.rank:
            until([], lambda: healed(session) or not session._link.open, 10.0)  # the welcome has come
            session.reactor.soon(lambda: reset(session._link._sock))
            time.sleep(0.1)
        return session

    monkeypatch.setattr(rendezvous.Meet, "session", late)
    with job(3) as crowd, ThreadPoolExecutor() as pool:
        now = [Generation(1, [other.seat for other in crowd], each.uid) for each in crowd]
        for one, generation in zip(crowd, now, strict=True):
            assert one.generations is not None
            one.generations.now = generation
        met = [pool.submit(meeting.MeetNext(*pair, 60.0).meet) for pair in zip(crowd, now, strict=True)]
        ready = [each.result(60.0) for each in met]
        said = [pool.submit(session.exchange, rank, 20.0) for rank, session in enumerate(ready)]
        assert [each.result(60.0) for each in said] == [[0, 1, 2]] * 3
        assert sum(session._link.connections > 1 for session in ready) == 2
        for session in made:
            session.abandon()


@pytest.mark.parametrize("encrypts", [False, True])
def test_a_generation_meets_once_whatever_breaks_when(encrypts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection to rank 0 that broke between the welcome and the transports ended the meeting for all: they agreed
    on a generation anew, and where connections break all the time, on one after the other.  Here they break before the
    welcome, too: an attempt ends, and the next one follows."""
    monkeypatch.setattr(sys.modules[__name__], "OWN", OWN._replace(encrypt=encrypts))
    over, dice, breaks, most, real = threading.Event(), random.Random(1), [0], [0], rendezvous.Meet.session

    def begins(one: rendezvous.Meet, sock: socket.socket) -> LinkSession:
        sessions.append(session := real(one, sock))  # also of an attempt that its break ends
        return session

    def meets(one: Mesh, generation: Generation) -> list[list[Any]]:
        session = meeting.MeetNext(one, generation, 60.0).meet()
        return [session.exchange([generation.rank, i], 60.0) for i in range(5) if not time.sleep(0.02)]

    def break_some() -> None:
        while not over.wait(dice.uniform(0, 0.06)):
            for session in sessions[-3:]:
                if session.rank and breaks[0] < most[0] and dice.random() < 0.5:
                    session.reactor.soon(lambda session=session: reset(session._link._sock))  # type: ignore[misc]
                    breaks[0] += 1

    sessions: list[LinkSession] = []
    monkeypatch.setattr(rendezvous.Meet, "session", begins)
    with job(3) as crowd, ThreadPoolExecutor() as pool:
        pool.submit(break_some)
        try:
            for number in range(1, 6):
                most[0] = breaks[0] + 8  # a slow machine, too, comes to an end
                seats = [each.seat for each in crowd]
                for each in crowd:
                    assert each.generations is not None
                    each.generations.now = Generation(number, seats, each.uid)
                met = [pool.submit(meets, each, each.now) for each in crowd]
                for each in met:
                    assert each.result(90.0) == [[[rank, i] for rank in range(3)] for i in range(5)]
                for session in sessions:
                    session.abandon()
                sessions.clear()
        finally:
            over.set()
    assert breaks[0] > 10
