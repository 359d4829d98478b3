"""When a rank waits long: it tells the coordinator its call, logs which ranks hold it up, gives up those that left."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from hocket.collectives.base import wording
from hocket.collectives.base.wording import by_rank, describe_account
from hocket.collectives.engine.engine import Engine
from hocket.collectives.failures.accounts import account_of, at
from hocket.collectives.failures.flight import FlightRecorder
from hocket.collectives.failures.leaving import (
    ARRIVAL_WAIT,
    HasLeft,
    Parted,
    missed_in_collective,
    missed_in_messages,
)
from hocket.collectives.members.members import Members
from hocket.collectives.recording.records import NOBODY, Kind
from hocket.collectives.waiting.queued import oldest, under_way
from hocket.control.protocol.messages import Account, Stuck

log = logging.getLogger("hocket")
STUCK_AFTER = 0.2
"""Seconds of waiting before a rank tells the coordinator what it waits for; so calls that never meet are found."""
STILL_WAITING, ANSWERS = 10.0, 0.5
"""Seconds of waiting after which a rank asks the others what they do, and seconds more until it logs the answers."""


@dataclass
class LongWait:
    """One long wait of an engine: in which call, how long by now, and what was done about it."""

    seq: int
    seconds: float = 0.0
    stuck: bool = False
    asked: bool = False
    said: bool = False
    left: frozenset[int] = frozenset()
    """Ranks that had left, or were stranded by these, when it last looked."""


class LongWaits:
    """The long waits of a communicator's engines."""

    def __init__(self, members: Members) -> None:
        self.members, self.world_ranks, self.world = members, members.world_ranks, members.world
        self.name, self.group = members.name, members.group
        self.flight = FlightRecorder(members)
        self.told: dict[int, Account] = {}
        """Other world ranks said that they were doing this, when this rank asked in a long wait."""
        self.stranded: dict[int, list[int]] = {}
        """Members that cannot go on, and the members that left them so."""
        self._waits: dict[Engine, LongWait] = {}

    def go_on(self, engine: Engine, seconds: float) -> LongWait:
        """`engine` has waited for `seconds` by now: if long, tell the coordinator, or log which ranks hold it up."""
        plan, _, seq, _ = at(engine, oldest(engine))
        waiting = self._waits.get(engine)
        if waiting is None or waiting.seq != seq or seconds < waiting.seconds:
            waiting = self._waits[engine] = LongWait(seq)
        waiting.seconds = seconds
        if self.members.idles:
            return waiting
        if seconds > STUCK_AFTER and not waiting.stuck and plan is not None:
            waiting.stuck = True
            account = account_of(engine, oldest(engine), self.world_ranks)
            sent, taken = ([], []) if self.members.passed is None else self.members.passed()
            if sent and plan.algorithm == "message":
                seq = self.members.main.engine.sequence + 1  # of the collective before which it stands
            self.world.session.stuck(
                Stuck(self.name, seq, self.world_ranks, f"{plan.fingerprint:08x}", account, sent, taken)
            )
        if seconds > STILL_WAITING and plan is not None:
            self._say_what_holds_up(engine, waiting)
        return waiting

    def strand(self, rank: int, by: Sequence[int]) -> None:
        """This rank of the job cannot go on, as those have left."""
        self.stranded[self.world_ranks.index(rank)] = [self.world_ranks.index(r) for r in by]

    def look_who_left(self, engine: Engine, waiting: LongWait) -> None:
        """Raise `HasLeft` if a call of this engine needs a rank that has left, renews, or is one of `stranded`.

        Or `Parted` if one of these made another call instead.
        """
        parted = self.world.renewing() | self.world.gone.left
        left = {self.world_ranks.index(r): calls for r, calls in parted.items() if r in self.world_ranks}
        absent = dict.fromkeys(self.stranded) | {r: calls.get(self.name) for r, calls in left.items()}
        queues = list(self.members.queues.values())
        queue = next((queue for queue in queues if queue.engine is engine), self.members.main)
        plan, number, before = engine.plan, waiting.seq, waiting.left
        waiting.left = frozenset(absent)
        if plan is None or plan.algorithm != "message":
            counted = absent if queue is self.members.main else dict.fromkeys(absent)
            if plan is not None and queue is self.members.main:
                made = [self.world.gone.finished(self.world_ranks[r], self.name, number) for r in left]
                if any(call is not None and call[0] != plan.fingerprint for call in made):
                    raise Parted
            gone = missed_in_collective(number, counted, waiting.seconds)
        else:  # a message sent before its rank left may have come since this wait last looked
            gone = missed_in_messages([plan if engine.in_call else None, *under_way(engine)], before)
            if waiting.seconds < ARRIVAL_WAIT and not all(queue.is_local(r) for r in gone):
                gone = []
        if gone:
            raise HasLeft(gone)

    def _say_what_holds_up(self, engine: Engine, waiting: LongWait) -> None:
        """Once in a long call: ask the others what they are doing, and a moment later log it.

        The coordinator answers only one of the ranks that wait; the others log nothing.
        """
        if not waiting.asked:
            waiting.asked = True
            self._note(engine, waiting)
            self.told.clear()
            self.world.session.ask(self.name, self.world_ranks)
        elif not waiting.said and waiting.seconds > STILL_WAITING + ANSWERS:
            waiting.said = True
            accounts = {r: account for r, account in self.told.copy().items() if r in self.world_ranks}
            if accounts:
                others = {r: accounts.get(r) for r in self.world_ranks if r != self.world.rank}
                mine, processes = account_of(engine, oldest(engine), self.world_ranks), self.flight.look()
                text = wording.still_waiting(mine, others, waiting.seconds, self.group, self.flight.seen(processes))
                log.warning("%s%s", text, self.flight.file(processes))

    def whereabouts(self, what: str, seconds: float, late: Sequence[int], mine: Account) -> str:
        """For a log: where the members are that hold up `what` for so long, and the file of what all did last.

        It is kept in the recorder, too.  Waits for the answers of those that are alive.  `mine`: this rank's account.
        """
        those = [self.world_ranks[rank] for rank in late]
        self._keep(what, seconds, those)
        self.told.clear()
        self.world.session.ask(self.name, those)
        until = time.monotonic() + ANSWERS
        while len(self.told) < len([rank for rank in those if rank != self.world.rank]) and time.monotonic() < until:
            time.sleep(ANSWERS / 20)
        accounts = {self.world.rank: mine, **self.told}
        processes = self.flight.look()
        seen = self.flight.seen(processes)
        texts = {r: describe_account(accounts.get(r), seen.get(r, "")) for r in those}
        return by_rank(texts) + self.flight.file(processes)

    def _note(self, engine: Engine, waiting: LongWait) -> None:
        """In the recorder: which call waits so long, and for whom if the call itself says so."""
        account = account_of(engine, oldest(engine), self.world_ranks)
        self._keep(account["call"], waiting.seconds, account.get("waits_for", []), waiting.seq)

    def _keep(self, what: str, seconds: float, awaited: Sequence[int], seq: int = 0) -> None:
        """`awaited`: world ranks."""
        if self.world.recorder is not None:
            peer = awaited[0] if len(awaited) == 1 else NOBODY
            self.world.recorder.put(Kind.LONG_WAIT, what, int(seconds * 1e9), peer, seq)
