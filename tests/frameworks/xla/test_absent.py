"""The absent of a group: the verdicts on what processes say of themselves, and how they say it."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Mapping

import pytest

from hocket.errors import MismatchError, PeerLostError, TimeoutError, TransportError
from hocket.xla import absent, telling
from hocket.xla.telling import BLOCKED, ELSEWHERE, ENDED, WORKS, Account

NONE: Mapping[str, list[int]] = {}
NO_CALLS: Mapping[str, tuple[int, bool, list[int]]] = {}


def said(
    does: str = BLOCKED, meets: Mapping[str, list[int]] = NONE,
    calls: Mapping[str, tuple[int, bool, list[int]]] = NO_CALLS, cpu: float = 0.0,
) -> Account:  # fmt: skip
    return Account(does, "train.py:3 in step", cpu, dict(meets), dict(calls))


MEETS = {0: said(meets={"ab": [1]}), 1: said(meets={"ba": [2]}), 2: said(meets={"c": [0, 1]})}
CALLS = {0: said(meets={"new": [1, 2]}, calls={"all": (4, False, [0, 1, 2])})} | {
    k: said(calls={"all": (5, True, [0, 1, 2])}) for k in (1, 2)
}


def test_a_circle_is_found_only_where_all_of_it_waits_and_stays() -> None:
    assert absent.circle(0, MEETS, MEETS, 1) == [0, 1, 2]
    assert absent.circle(0, CALLS, CALLS, 1) == [0, 1]
    compiles = said(WORKS, {"c": [0]})
    ahead = said(meets={"new": [1, 2]}, calls={"all": (5, False, [0, 1, 2])})  # it has made call 5
    another = said(calls={"all": (4, True, [0, 1, 2])})
    thread = said(meets={"ab": [1], "d": [3]})  # 2 waits for this one, and another thread of it may go on when 3 comes
    last = {3: said(meets={"e": [1]})}
    assert absent.circle(0, MEETS | {0: thread} | last, MEETS | {0: thread} | last, 1) == [0, 1, 2]
    cases: list[tuple[absent.Accounts, absent.Accounts]] = [
        (MEETS | {2: compiles}, MEETS), (MEETS, MEETS | {2: compiles}), (MEETS, {}),
        ({0: MEETS[0], 1: MEETS[1]}, MEETS), (MEETS | {1: said(meets={"ba": [2]}, cpu=0.5)}, MEETS),
        (MEETS | {0: said(ELSEWHERE, {"ab": [1]})}, MEETS),
        (CALLS | {0: ahead}, CALLS | {0: ahead}), (CALLS, CALLS | {1: another, 2: another}), (MEETS | {1: None}, MEETS),
        *[(now, now) for now in (MEETS | {0: thread} | each for each in ({}, {3: compiles}, {3: said()}))],
        (MEETS | {0: thread} | last, MEETS | last),
    ]  # fmt: skip
    for now, before in cases:
        assert absent.circle(0, now, before, 1) == [], (now, before)


class Wall:
    """A board on which others write."""

    def __init__(self) -> None:
        self.written: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.written[key] = value

    def entries(self) -> dict[str, str]:
        return self.written


@pytest.mark.parametrize(
    ("accounts", "error", "text"),
    [
        ({1: None, 2: said(WORKS)}, PeerLostError, "process 1 is gone; process 2 works in JAX at train.py:3 in step"),
        ({1: said(ENDED), 2: said(WORKS)}, PeerLostError, "process 1 has ended its program; process 2 works"),
        (MEETS, MismatchError, "process 2 waits at train.py:3 in step for process 0: "),
        ({1: said(ELSEWHERE), 2: said()}, TimeoutError, "process 1 is outside JAX at train.py:3 in step; process 2"),
        ({1: said(), 2: said()}, TimeoutError, "process 1 waits at"),
        ({}, TimeoutError, "process 1 does not answer; process 2 does not answer"),
        ({1: said(WORKS), 2: said()}, TransportError, "devices were not joined: process 1: why"),
    ],
)
def test_who_does_not_come_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, accounts: dict[int, Account | None],
    error: type[Exception], text: str,
) -> None:  # fmt: skip
    """Within the patience, unless one that is missing works: the last one says it has failed, long after that."""
    monkeypatch.setattr(absent, "ASKED", 0.02)
    monkeypatch.setattr(absent, "NAMED", 0.05)
    wall, limit = Wall(), 0.2 if error in (TimeoutError, TransportError) else 30.0

    def ask(process: int) -> Account | None:
        if process not in accounts and process:
            raise OSError
        return accounts.get(process, said(meets={"abc": [1, 2]}))

    late = threading.Timer(3 * limit, wall.set, ("failed", "process 1: why"))
    if error is TransportError:
        late.start()
    meeting = absent.Meeting("devices", 0, ask)
    with pytest.raises(error, match=text):
        meeting.gather(wall, 0, [0, 1, 2], (limit, 60))
    late.cancel()
    assert meeting.hopeless == ({"ab", "ba", "c"} if error is MismatchError else set())
    idle = error is TimeoutError and any(accounts.get(k) is None or accounts[k].does == ELSEWHERE for k in (1, 2))  # type: ignore[union-attr]
    assert ("devices wait since" in caplog.text) == idle, caplog.text


def test_those_that_come_are_met_and_a_process_that_ends_waits_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = Wall()
    late = threading.Timer(0.05, wall.set, ("came/1", ""))
    late.start()
    absent.Meeting("devices", 0, lambda process: None).gather(wall, 0, [0, 1], (60, 60))
    assert set(wall.written) == {"came/0", "came/1"}
    event = threading.Event()
    event.set()
    monkeypatch.setattr(absent, "leaving", event)
    with pytest.raises(TransportError, match="this process ends"):
        absent.Meeting("devices", 0, lambda process: None).gather(Wall(), 0, [0, 1], (1, 1))


def test_a_wait_with_a_limit_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread, the main one here, may go on by itself.  Other tests' threads may do what they like."""
    frames, others = sys._current_frames, {*sys._current_frames()} - {threading.get_ident()}
    monkeypatch.setattr(sys, "_current_frames", lambda: {k: v for k, v in frames().items() if k not in others})
    found: list[Account] = []
    done = threading.Event()

    def own() -> Account:
        end = time.monotonic() + 30
        while True:  # on a busy machine it is long before it waits
            time.sleep(0.1)
            told = telling.account({}, {}, set())
            if told.does == does or time.monotonic() > end:
                break
        found.append(told)
        done.set()
        return told

    teller = telling.Teller("127.0.0.1", own)
    for limit, does in ((None, BLOCKED), (60, ELSEWHERE)):
        done.clear()
        with socket.create_connection(teller.place) as asks:
            asks.sendall(teller.word.encode())
            assert done.wait(limit)
        assert found.pop().does == does
    teller.close()


def test_a_process_tells_what_it_does_to_those_with_the_word() -> None:
    """Its main thread here runs the test: it is outside JAX, and at its line."""
    teller = telling.Teller("127.0.0.1", lambda: telling.account({"g": [1]}, {"h": (3, True, [0, 1])}, set()))
    answers: list[Account | None] = []
    asks = threading.Timer(0.1, lambda: answers.append(telling.ask(*teller.place, teller.word)))
    asks.start()  # later: here it waits for a thread to begin
    while not answers:
        time.sleep(0.01)
    [found] = answers
    assert found is not None and found.does == ELSEWHERE, found
    assert found.at.endswith("in test_a_process_tells_what_it_does_to_those_with_the_word"), found
    assert (found.meets, list(found.calls), list(found.calls["h"])) == ({"g": [1]}, ["h"], [3, True, [0, 1]])
    assert found.others() == {0, 1}
    with pytest.raises(OSError, match="no answer"):
        telling.ask(*teller.place, "0" * len(teller.word))
    teller.close()
    until = time.monotonic() + 5
    while telling.ask(*teller.place, teller.word) is not None:
        assert time.monotonic() < until
