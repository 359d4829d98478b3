"""One rank of a random program: it runs the rounds, and says the first thing that is wrong.

`python -m hocket.conformance.fuzz.rank SEED ROUNDS TRANSPORT`, started by __main__.py.  It ends with 0 and says the
checksums of its results, or with 3.
"""

from __future__ import annotations

import os
import random
import sys
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import hocket
from hocket.conformance.fuzz.exchange import Exchange
from hocket.conformance.fuzz.local_call import LocalCall, Made, WrongError
from hocket.conformance.fuzz.program import program
from hocket.conformance.fuzz.rounds import Calls, Drop, Make, Messages, Round, Settle, as_text
from hocket.conformance.jobs.trial import listen, say

UNDER_WAY = 12
"""Works at most, before some are waited for."""


class Pending(NamedTuple):
    """A work that was not waited for."""

    comm: int
    number: int
    doing: str
    """Its round."""
    work: Any
    finish: Callable[[], None]


class RankState:
    """This rank's state: its communicators by number (None: it is no member), what is under way, what it found."""

    def __init__(self, world: Any, seed: int, transport: str) -> None:
        self.seed, self.transport, self.me = seed, transport, world.rank
        self.own = random.Random(f"{seed} {transport} rank {world.rank}")
        self.comms: dict[int, Any] = {0: world}
        self.pending: list[Pending] = []
        self.number, self.doing = -1, "it starts"
        self.sums: dict[str, int] = {}
        """Checksums of results that all ranks must have alike, by round and place in it."""

    def run(self, rounds: int) -> None:
        for number, each in enumerate(program(self.seed, self.comms[0].size, rounds, self.transport)):
            self.number, self.doing = number, as_text(each)
            self._round(each)
            while len(self.pending) > UNDER_WAY:
                self._settle(self.pending, self.own.randrange(1, UNDER_WAY))

    def _round(self, each: Round) -> None:
        if isinstance(each, Settle):
            self._settle(self.pending)
            return
        comm = self.comms.get(each.comm)
        if isinstance(each, Make):
            self._make(each, comm)
        elif comm is None:
            return
        elif isinstance(each, Calls):
            self._calls(each, comm)
        elif isinstance(each, Messages):
            under = Exchange(comm, each, (self.seed, self.number), self.own).run()
            self.pending += [Pending(each.comm, self.number, self.doing, u.work, u.check) for u in under]
        else:
            self._drop(each, comm)

    # --- collectives

    def _calls(self, each: Calls, comm: Any) -> None:
        calls = [LocalCall(comm, call, (self.seed, self.number, place)) for place, call in enumerate(each.calls)]
        if each.together:
            with hocket.group():
                made = [local.make() for local in calls]
            for place, one in enumerate(made):
                self._look(place, one, one.returned, each.calls[place].collective)
            return
        (local,) = calls
        for _ in range(local.call.repeats):
            one = local.make()
            if one.later:
                self.pending.append(self._later(each, one, local.call.collective))
            else:
                self._look(0, one, one.returned, local.call.collective)

    def _later(self, each: Calls, one: Made, collective: str) -> Pending:
        def finish() -> None:
            self._look(0, one, one.returned.result(), collective)

        return Pending(each.comm, self.number, self.doing, one.returned, finish)

    def _look(self, place: int, one: Made, result: Any, collective: str) -> None:
        """Check a result; the same call has the same bits each time, and an allreduce on all ranks."""
        found = one.check(result)
        if found is None:
            return
        name = f"{self.number}.{place} {'all' if collective == 'allreduce' else self.me}"
        if self.sums.setdefault(name, found) != found:
            raise WrongError("the same call gave other bits the second time")

    # --- what is under way

    def _settle(self, which: list[Pending], count: int | None = None) -> None:
        """Wait for `count` of them (default: all), in random order, in one of the ways there are."""
        some = self.own.sample(which, len(which) if count is None else min(count, len(which)))
        for each in some:
            self.pending.remove(each)
            here = self.number, self.doing
            self.number, self.doing = each.number, each.doing
            kind = self.own.random()
            if kind < 0.1:
                while not each.work.wait(0.001):
                    pass
            elif kind < 0.2:
                each.work.done()
            each.work.wait()
            each.finish()
            self.number, self.doing = here

    # --- communicators

    def _make(self, each: Make, comm: Any) -> None:
        found = self._made(each, comm) if comm is not None else None
        for number, members in each.made:
            mine = self.me in members
            self.comms[number] = found if mine else None
            if mine and (found is None or tuple(found.members) != members or found.rank != members.index(self.me)):
                raise WrongError(f"the new communicator is {found!r}, not one of {members}")
        if found is not None and all(self.me not in members for _, members in each.made):
            raise WrongError(f"the new communicator is {found!r} on a rank that is not a member")

    def _made(self, each: Make, comm: Any) -> Any:
        if each.how == "split":
            return comm.split(each.colors[comm.rank], each.keys[comm.rank])
        if each.how == "dup":
            return comm.dup()
        if each.how == "subgroup":
            return comm.subgroup(each.ranks)
        return comm.create_group(each.ranks, f"group {self.number}") if comm.rank in each.ranks else None

    def _drop(self, each: Drop, comm: Any) -> None:
        del self.comms[each.comm]
        if each.settled:
            self._settle([p for p in self.pending if p.comm == each.comm])
        if each.close:
            comm.close()


def main(words: list[str]) -> int:
    """One rank's exit code."""
    listen()
    seed, rounds, transport = int(words[0]), int(words[1]), words[2]
    rank: RankState | None = None
    try:
        with hocket.init() as comm:
            rank = RankState(comm, seed, transport)
            rank.run(rounds)
    except BaseException as error:
        number, doing = (rank.number, rank.doing) if rank else (-1, "hocket.init")
        known = isinstance(error, (hocket.Error, WrongError))
        text = str(error) if known else traceback.format_exc()
        say(error=type(error).__name__, text=text, round=number, call=doing)
        os._exit(3)  # without a word to the others: what follows from this is not interesting
    say(sums=rank.sums)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
