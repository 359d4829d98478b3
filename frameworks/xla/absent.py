"""All ranks of a group come before it is made, or who does not come is named.

A rank that compiles comes late, and is waited for.  Those that cannot come are told apart by what they say of
themselves: one that is gone or has ended its program, and one that waits, in the end, for the rank that waits for it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from hocket.errors import MismatchError, PeerLostError, TimeoutError, TransportError
from hocket.xla.telling import BLOCKED, ELSEWHERE, ENDED, WORKS, Account

log = logging.getLogger("hocket")
PAUSES = 0.001, 0.02
"""Seconds between two looks, at first and later."""
ASKED, NAMED = 1.0, 3.5
"""Seconds after which the absent are asked, and again; and after which the log names those that are outside JAX."""
STILL = 0.2
"""A process that waits uses less of a core."""
ROUND = 32
"""Processes that are asked in a round, at most."""
leaving = threading.Event()
"""Does this process end?"""
Accounts = Mapping[int, Account | None]
"""The accounts of processes; None: it is gone."""


class Board(Protocol):
    """The part of JAX's store that is the group's."""

    def set(self, key: str, value: str) -> None: ...
    def entries(self) -> dict[str, str]: ...


def waits(process: int, now: Accounts) -> dict[str, set[int]]:
    """For each of its waits, by the group, the processes without which that one cannot end."""
    its = now.get(process)
    if its is None:
        return {}
    found = {group: set(others) for group, others in its.meets.items()}
    for group, (begun, busy, members) in its.calls.items():
        if busy:
            theirs = {other: account.calls.get(group, (0,))[0] for other in members if (account := now.get(other))}
            found.setdefault(group, set()).update(other for other in theirs if theirs[other] < begun)
    return found


def stays(process: int, now: Accounts, before: Accounts, seconds: float) -> list[set[int]]:
    """Its waits, where all its threads are in those of the round before; none, where it may go on by itself."""
    new, old = now.get(process), before.get(process)
    if new is None or old is None or not new.does == old.does == BLOCKED or new.cpu - old.cpu > STILL * seconds:
        return []
    if {group: its[:2] for group, its in new.calls.items()} != {group: its[:2] for group, its in old.calls.items()}:
        return []
    first, then = waits(process, before), waits(process, now)
    return [then[group] & first[group] for group in then] if first.keys() == then.keys() else []


def stuck(now: Accounts, before: Accounts, seconds: float) -> dict[int, set[int]]:
    """The processes that cannot go on, and those of them for which each waits.

    A process goes on when one of its threads does, and a thread when all come for which it waits.  So a process is
    stuck if each of its waits, of whatever thread, is for one that is stuck.
    """
    left = {process: its for process in now if (its := stays(process, now, before, seconds))}
    while free := [process for process, its in left.items() if not all(each & left.keys() for each in its)]:
        for process in free:
            del left[process]
    return {process: set().union(*its) & left.keys() - {process} for process, its in left.items()}


def circle(me: int, now: Accounts, before: Accounts, seconds: float) -> list[int]:
    """The shortest way on which each process waits for the next, and the last one for this one; []: there is none."""
    ways, seen, held = [[me]], {me}, stuck(now, before, seconds)
    for way in ways:
        for other in sorted(held.get(way[-1], ())):
            if other == me:
                return way
            if other not in seen:
                seen.add(other)
                ways.append([*way, other])
    return []


def words(process: int, account: Account | None, silent: bool = False) -> str:
    """>>> words(2, None)
    'process 2 is gone'
    """
    if silent or account is None:
        return f"process {process} {'does not answer' if silent else 'is gone'}"
    at = f" at {account.at}" if account.at and account.does != ENDED else ""
    return f"process {process} {account.does}{at}"


class Meeting:
    """One rank's wait for the others of its group."""

    def __init__(self, what: str, mine: int, ask: Callable[[int], Account | None]) -> None:
        self.what, self.mine, self.ask = what, mine, ask
        self.missing: list[int] = []
        """Processes with ranks that have not come."""
        self.hopeless: set[str] = set()
        """Groups of the circle in which this one waits: who finds it leaves, so others would not see it any more."""
        self._accounts: dict[int, Account | None] = {}
        self._looked = time.monotonic()

    def gather(self, board: Board, key: int, processes: list[int], patience: tuple[float, float]) -> None:
        """Return when the ranks of all `processes`, by rank, have come.

        `patience`: seconds without a sign that one that is missing works, and seconds in all.  Raises PeerLostError,
        MismatchError, TimeoutError: they name the absent.  TransportError: another rank has failed to meet.
        """
        board.set(f"came/{key}", "")
        began = last = asked = time.monotonic()
        pause, named = PAUSES[0], False
        while True:
            there = board.entries()
            absent = [rank for rank in range(len(processes)) if f"came/{rank}" not in there]
            self.missing = sorted({processes[rank] for rank in absent} - {self.mine})
            if "failed" in there:
                raise TransportError(f"{self.what} were not joined: {there['failed']}")
            if not absent:
                return
            if leaving.is_set():
                raise TransportError(f"{self.what} were not joined: this process ends")
            now = time.monotonic()
            if now - asked > ASKED and self.missing:
                self._judge()
                asked = time.monotonic()
                others = [account for process, account in self._accounts.items() if process != self.mine]
                last = asked if any(account and account.does == WORKS for account in others) else last
                if not named and asked - began > NAMED and self._idle():
                    named = True
                    log.warning("%s wait since %.0f s: %s", self.what, asked - began, self._words())
            if now - last > patience[0] or now - began > patience[1]:
                raise TimeoutError(
                    f"{self.what} were not joined within {now - began:.0f} s: {self._words()}: all processes of a "
                    "group run its programs (the limits: HOCKET_ABSENT_AFTER, HOCKET_TIMEOUT)", self.missing,
                )  # fmt: skip
            time.sleep(pause)
            pause = min(2 * pause, PAUSES[1])

    def _idle(self) -> bool:
        """Is one of the missing outside JAX, or silent?"""
        found = [self._accounts.get(process) for process in self.missing]
        return any(account is None or account.does == ELSEWHERE for account in found)

    def _words(self) -> str:
        return "; ".join(words(each, self._accounts.get(each), each not in self._accounts) for each in self.missing)

    def _judge(self) -> None:
        before, seconds, self._looked = self._accounts, time.monotonic() - self._looked, time.monotonic()
        self._ask_all()
        known = {process: self._accounts[process] for process in self.missing if process in self._accounts}
        gone = [process for process, account in known.items() if account is None or account.does == ENDED]
        if gone:
            raise PeerLostError(f"{self.what} cannot be joined: {self._words()}", gone)
        way = circle(self.mine, self._accounts, before, seconds)
        if way:
            pairs = [(a, self._accounts[a], b) for a, b in zip(way, [*way[1:], way[0]], strict=True)]
            self.hopeless = {name for _, its, b in pairs if its for name, absent in its.meets.items() if b in absent}
            chain = "; ".join(f"{words(a, its)} for process {b}" for a, its, b in pairs)
            raise MismatchError(
                f"{self.what} cannot be joined, as processes wait for each other in other calls: {chain}: all "
                "processes of a group start its programs in the same order"
            )

    def _ask_all(self) -> None:
        """The missing, and those for which they wait."""
        self._accounts = {}
        until, todo = time.monotonic() + ASKED, [self.mine, *self.missing]
        for count, process in enumerate(todo):
            if time.monotonic() > until or count == ROUND:
                return
            with contextlib.suppress(OSError):  # it does not answer
                its = self._accounts[process] = self.ask(process)
                todo += sorted(its.others() - set(todo)) if its else []
