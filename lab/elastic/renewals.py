"""The growth of a renewal's messages, bytes and time with the ranks.  Simulated: real members' state, no sockets.

`python -m hocket.lab.elastic.renewals [--ranks 4,16,64,256,1000] [--comes]`
All members call `renew`; then rank 0, which leads, dies, and the others renew.  Each word goes through JSON as it does
between processes.  messages: those of all ranks; chain: the longest row of messages of which each waits for the one
before it, which is what latency counts.  ms: of computing on a core of its own, at the rank that leads, and at the last
of the others.  `--comes`: `Communicator.come` in place of renew, as a Crew calls it at each moment of a round.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from hocket.control.protocol.generations import Generation, Generations, To
from hocket.control.protocol.messages import pack
from hocket.control.protocol.seats import Seat
from hocket.control.protocol.words import Call
from hocket.lab.program import arguments

RANKS = "4,16,64,256,1000"


class AgreementCost(NamedTuple):
    """The cost of an agreement."""

    messages: int
    bytes: int
    chain: int
    leader: float
    other: float
    """Seconds."""


class SimulatedMembers:
    """Processes, and what is on its way between them, in the order in which it was sent."""

    def __init__(self, count: int) -> None:
        seats = [Seat(f"{i:016x}", [["tcp", "10.0.0.1", 40000 + i]], "host", i, i) for i in range(count)]
        self.all = {seat.uid: Generations(seat.uid, Generation(0, seats, seat.uid)) for seat in seats}
        self.flight: deque[tuple[str, str, str, int]] = deque()
        self.spent: dict[str, float] = {}
        """Seconds of computing, of those that are watched: to ask for the time of each would take longer than all."""
        self.messages = self.bytes = self.chain = 0

    def take(self, uid: str, act: Any, depth: int = 0) -> None:
        """Let a process act, and send what it says then."""
        began = time.perf_counter() if uid in self.spent else 0.0
        found = [each for each in act(self.all[uid]) if isinstance(each, To)]
        texts: dict[int, str] = {}  # what goes to several is encoded once, as between processes
        for each in found:
            if id(each.message) not in texts:
                texts[id(each.message)] = json.dumps(pack(each.message))
        sent = [(each.uid, texts[id(each.message)]) for each in found]
        if uid in self.spent:
            self.spent[uid] += time.perf_counter() - began
        for to, text in sent:
            if to in self.all:
                self.flight.append((uid, to, text, depth + 1))

    def settle(self) -> None:
        while self.flight:
            by, to, text, depth = self.flight.popleft()
            self.messages, self.bytes, self.chain = self.messages + 1, self.bytes + len(text), max(self.chain, depth)
            self.take(to, lambda its, by=by, text=text: its.hear(by, json.loads(text)), depth)

    def kill(self, uid: str) -> None:
        """The kernel tells each of the others; so what they tell each other of it is news to nobody, and left out."""
        del self.all[uid]
        for its in self.all.values():
            its.proven(uid)

    def agree(self, comes: bool) -> AgreementCost:
        """All call, and one agreement ends.  Raises RuntimeError if they do not hold the same."""
        self.messages = self.bytes = self.chain = 0
        (leader, its), last = next(iter(self.all.items())), [*self.all][-1]
        self.spent, round_ = {leader: 0.0, last: 0.0}, its.now.next_round()
        for i, uid in enumerate(self.all):
            call = Call({"step": 17, "rank": i})
            self.take(uid, lambda its, call=call: its.come(round_, call) if comes else its.call(call))
        self.settle()
        made = {self._made(its, round_ if comes else 0) for its in self.all.values()}
        if len(made) != 1 or made == {None}:
            raise RuntimeError(f"the members do not agree: {made}")
        return AgreementCost(self.messages, self.bytes, self.chain, self.spent[leader], self.spent[last])

    def _made(self, its: Generations, round_: int) -> object:
        if round_:
            outcome = its.now.outcome(round_)
            return None if outcome is None else (outcome.members, json.dumps(outcome.infos))
        return its.now.number, tuple(its.now.ranks), json.dumps(its.now.infos)


def costs(count: int, comes: bool) -> list[tuple[str, AgreementCost]]:
    """The costs of an agreement of all, and of one after rank 0 was lost."""
    members = SimulatedMembers(count)
    found = [("all", members.agree(comes))]
    members.kill(next(iter(members.all)))
    return [*found, ("rank 0 was lost", members.agree(comes))]


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = arguments("hocket.lab.elastic.renewals", __doc__, argv, ranks=RANKS, comes=False)
    print("| ranks | | messages | a rank | kB | chain | leader, ms | another, ms |\n|---|---|---|---|---|---|---|---|")
    for count in map(int, options.ranks.split(",")):
        for what, cost in costs(count, options.comes):
            print(f"| {count} | {what} | {cost.messages} | {cost.messages / count:.1f} | {cost.bytes / 1e3:.0f} "
                  f"| {cost.chain} | {1e3 * cost.leader:.1f} | {1e3 * cost.other:.2f} |", flush=True)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
