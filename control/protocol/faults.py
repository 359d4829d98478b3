"""The coordinator's handling of faults: one fault of a communicator becomes one verdict on all its ranks.

    fault (or two `stuck` that differ)  ->  "stop" to all its ranks  ->  their answers, or none  ->  "verdict"

Later faults of the same communicator are folded into the first, but all ranks hear which ones a signal ends.  It is
told which rank sent what and when time is over, and yields what to send.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from hocket.control.protocol.membership import Gone
from hocket.control.protocol.messages import Account, Answer, Fault, FaultKind, Message, Stop, Stuck, Verdict

GATHER = 1.0  # seconds in which a rank says what it was doing; with 0.4, one of a busy machine came too late
NO_ANSWER: Account = {"state": "no answer"}
LEFT: FaultKind = "left"
"""The kind of a fault that only concerns ranks that wait for the reporter, which needed a rank that has left."""
EXIT: FaultKind = "exit"
"""The kind of a fault that all ranks hear of, whatever failed before: a signal's handler has ended the reporter."""


class SendMessage(NamedTuple):
    """An instruction: send this to a rank, if it is here."""

    rank: int
    message: Message


class Later(NamedTuple):
    """An instruction: let the coordinator take `timer` after a time."""

    seconds: float
    timer: Timer


class Timer(NamedTuple):
    """A time is over: of what, and for which communicator or rank."""

    what: str
    of: str | int
    how: str = ""


Instructions = Iterator[SendMessage | Later]


@dataclasses.dataclass
class Inquiry:
    """The fault of one communicator while its accounts come in."""

    fault: Fault
    accounts: dict[int, Account]
    decided: bool = False


class Faults:
    """The inquiries of a job's communicators."""

    def __init__(self, gone: Gone) -> None:
        self._gone = gone
        self._inquiries: dict[str, Inquiry] = {}
        self._stuck: dict[str, dict[int, Stuck]] = {}

    def report(self, by: int, fault: Fault) -> Instructions:
        """A rank failed: open the inquiry of its communicator, or add to it."""
        account, fault = fault.account, fault._replace(by=by, account=None)
        inquiry = self._inquiries.get(fault.comm)
        if fault.kind == LEFT or (fault.kind == EXIT and inquiry is not None):
            yield from _to_all(fault.ranks, Verdict(fault))
        if fault.kind == LEFT:
            return
        if inquiry is None:
            inquiry = self._inquiries[fault.comm] = Inquiry(fault, {})
            self._stuck.pop(fault.comm, None)
            yield from _to_all(fault.ranks, Stop(fault))
            yield Later(GATHER, Timer("gather", fault.comm))
        if account:
            inquiry.accounts[by] = account  # knows more than the answer to a stop
        yield from self._settle(inquiry)

    def stuck(self, by: int, call: Stuck) -> Instructions:
        """A rank has waited a while; two that wait in the same call for different things are a mismatch."""
        waiting = self._stuck.setdefault(call.comm, {})
        if call.comm in self._inquiries or (by in waiting and waiting[by].seq > call.seq):
            return
        waiting[by] = call
        same = {rank: other for rank, other in waiting.items() if other.seq == call.seq}
        if len({other.fingerprint for other in same.values() if not other.between}) < 2 and not crossed(waiting):
            return
        yield from self.report(by, Fault("mismatch", call.comm, call.seq, call.ranks))
        for rank, other in same.items():
            yield from self.answer(rank, Answer(call.comm, other.account or NO_ANSWER))

    def answer(self, rank: int, answer: Answer) -> Instructions:
        """Take a rank's account of what it was doing when it was stopped; the first answer counts."""
        inquiry = self._inquiries.get(answer.comm)
        if inquiry is not None and answer.account:
            inquiry.accounts.setdefault(rank, answer.account)
            yield from self._settle(inquiry)

    def lose(self) -> Instructions:
        """A rank is gone now: no inquiry waits for its answer any more."""
        for inquiry in list(self._inquiries.values()):
            yield from self._settle(inquiry)

    def over(self, comm: str) -> Instructions:
        """The time to answer is over."""
        yield from self._decide(self._inquiries[comm])

    def _settle(self, inquiry: Inquiry) -> Instructions:
        if all(rank in inquiry.accounts or rank in self._gone for rank in inquiry.fault.ranks):
            yield from self._decide(inquiry)

    def _decide(self, inquiry: Inquiry) -> Instructions:
        if inquiry.decided:
            return
        inquiry.decided = True
        for rank in inquiry.fault.ranks:
            gone = rank in self._gone
            silent = self._gone.account(rank, inquiry.fault.comm, inquiry.fault.seq) if gone else NO_ANSWER
            inquiry.accounts.setdefault(rank, silent)
        yield from _to_all(inquiry.fault.ranks, Verdict(inquiry.fault, inquiry.accounts))


def crossed(waiting: Mapping[int, Stuck]) -> bool:
    """Do calls wait for each other that follow each other on every rank, collectives and messages?  For certain.

    A message that was not sent yet comes after its sender's call, and a collective needs all ranks.  That holds however
    old the reports are.
    """
    after: dict[int, set[int]] = {rank: set() for rank in waiting}
    for (rank, mine), (other, its) in itertools.permutations(waiting.items(), 2):
        sent, taken = (dict(zip(mine.ranks, counts, strict=False)) for counts in (mine.sent, mine.taken))
        its_sent, its_taken = (dict(zip(its.ranks, counts, strict=False)) for counts in (its.sent, its.taken))
        if not mine.between:
            late = its.between and its.seq == mine.seq
        elif not its.between and its.seq == mine.seq and sent.get(other, 0) > its_taken.get(rank, 0):
            return True  # what goes out before the collective is not taken before it
        else:
            late = taken.get(other, 0) > its_sent.get(rank, 0)
        if late:
            after[rank].add(other)
    ends = set[int]()
    while found := {rank for rank in after.keys() - ends if after[rank] <= ends}:
        ends |= found
    return len(ends) < len(after)


def _to_all(ranks: list[int], message: Message) -> Instructions:
    for rank in ranks:
        yield SendMessage(rank, message)
