"""A simulator of `training/server/view_machine.py`: what crew_simulator.py has, for members that agree on views.

Each generation's members say what they have, and install what follows from that; then they hold it until somebody is
lost or wants to come.  What programs do is no part of it: a thread of each member agrees.
"""

from __future__ import annotations

import random
import types
from collections.abc import Iterator
from typing import Any

from hocket.errors import Error
from hocket.training.server.views import HEAD, WHOLE, MemberInfo
from support import crew_simulator as crew
from support.crew_simulator import LIMIT, NEWCOMERS, Call, Generation, Person
from support.lines import Broken

FAULTS = ("kill", "stop", "stopped long", "stopped", "leave", "new", "wrong", "loads long")
RENEW = LIMIT * 3 // 2
"""Seconds of a renewal: who has heard nothing of the others for the limit comes to it in time."""
SILENT = LIMIT + RENEW + NEWCOMERS
COST = {"stop": RENEW, "stopped long": SILENT, "stopped": SILENT, "loads long": RENEW}
"""Seconds that each may cost a healthy member until it has the next view."""
START = 5 * LIMIT
"""Seconds that a call without a limit of its own may take."""


class World(crew.World):
    def __init__(self, code: Any, size: int, faults: int) -> None:
        never = type("Never", (), {})
        super().__init__(types.SimpleNamespace(**vars(code), Come=never, Meet=code.Renew), size, faults)
        self.rested, self.views, self.begun = False, dict[int, Any](), False

    def _enter_generation(self, who: Person, of: Generation, new: bool) -> None:
        who.generation, who.counts = of, {}
        if new:
            who.until, who.asked = self.now + who.loads, self.now + who.loads
        if who.machine is None:
            who.machine = self.code.ViewMachine(str(who.uid), True, of.number)

    def choices(self) -> list[tuple[Any, ...]]:
        while True:
            found = [each for who in self.all if self._runs(who) for each in self._of(who)]
            later = [each for who in self.all if who.alive and who.ended is None for each in self._times(who)]
            later = [each for each in later if self.now < each < crew.END]
            if found or not later:
                return found or [("rests",)]
            self.now = min(later)
            self._look()

    def faulty(self) -> list[tuple[Any, ...]]:
        """Once the job has begun: until then each waits for all."""
        return [each for each in super().faulty() if each[0] in FAULTS and self.begun]

    def do(self, choice: tuple[Any, ...]) -> None:
        if choice[0] == "rests":
            self.rested = True
        else:
            super().do(choice)

    def _of(self, who: Person) -> Iterator[tuple[Any, ...]]:
        of = who.generation
        if of is None or who.waits is not None or who.phase == "boundary":
            yield from super()._of(who)
        elif of.next is not None or of.renewing or self.lobby or not all(self.all[uid].alive for uid in of.members):
            yield "program", who.uid

    def _limit(self, who: Person) -> float:
        if isinstance(who.waits, self.code.Say):
            return START if who.waits.patient else LIMIT
        return RENEW

    def _program(self, who: Person) -> None:
        begins, who.phase, who.asked = who.phase == "boundary", "holds", self.now
        self._do(who, who.machine.begin() if begins else who.machine.take(self.code.Changed()))

    def _act(self, who: Person, event: Any) -> None:
        if isinstance(event, self.code.Fails) and not event.missing:
            event = event._replace(over=self.now - who.asked > START)
        self._do(who, who.machine.take(event))

    def _counts(self, who: Person) -> bool:
        return super()._counts(who) and who.made == self.all[0].made

    def _do(self, who: Person, instructions: list[Any]) -> None:
        last, code = instructions[-1], self.code
        if isinstance(last, code.Install):
            self._limited(who)
            if self.views.setdefault(last.view.generation, last.view) != last.view:
                raise Broken(f"One view: {last.view}: {self._shown()}")
            who.x = tuple((shard, HEAD if head == who.uid else WHOLE) for shard, head in enumerate(last.view.heads)
                          if who.uid in (head, last.view.copies[shard]))  # fmt: skip
            good = [self.all[uid] for uid in who.generation.members if self.all[uid].made["every"] == 4]
            if who.made["every"] != 4 and any(each.alive and each.position for each in good):
                raise Broken(f"Refused: {who.uid} takes part: {self._shown()}")
            who.position = last.view.shards
            if all(each.position for each in self.all):
                self.begun = True
        elif isinstance(last, code.Raise):
            self._ends(who, last.error)
            who.alive = False
        else:
            who.waits, who.since = last, self.now
            if isinstance(last, code.Say):
                self._enter(who, tuple(range(len(who.generation.members))), "says", self._word(who))
            else:
                if {*last.without} - {*range(len(who.generation.members))}:
                    raise Broken(f"Ranks: {who.uid} leaves out {last.without}: {self._shown()}")
                without = {who.generation.members[rank] for rank in last.without}
                who.generation.renewing[who.uid] = None, without, self.now

    def _word(self, who: Person) -> list[Any]:
        has, first = {str(shard): what for shard, what in (who.x if who.position else ())}, who.generation.number == 0
        tables, shards = str(who.made["every"]), who.position or (len(self.newest.members) if first else 0)
        settings = ["bsp", 1] if shards else ["async", 0]
        return list(MemberInfo(who.uid, True, f"at {who.uid}", has, shards, tables, settings, who.machine.has_view))

    def _done(self, who: Person, call: Call) -> Any:
        of = who.generation
        return self.code.Words(self._rank(who), of.number, [*call.entered.values()], of.previous)

    def _met(self, who: Person) -> Any:
        self._enter_generation(who, who.generation.next, False)
        return self.code.Renewed()

    def _ends(self, who: Person, error: Error) -> None:
        who.ended = error
        if who.healthy and not who.few:
            raise Broken(f"Nobody healthy ends: {who.uid} has {error!r}: {self._shown()}")

    def _limited(self, who: Person) -> None:
        cost = sum(COST.get(each, 0) for each in self.had) + START * (not who.position) + RENEW * (len(self.had) - 1)
        if who.healthy and not who.few and self.now - who.asked > cost:
            raise Broken(f"Limit: {who.uid} has waited for {self.now - who.asked:g} s: {self._shown()}")

    def over(self) -> bool:
        return self.rested

    def alike(self) -> None:
        """At rest all that are awake have the view of one generation."""
        for who in self.all:
            if self.rested and self._runs(who) and not who.few and who.healthy and who.machine is not None:
                if who.generation is not self.newest or who.waits is not None:
                    raise Broken(f"Ending: {who.uid} waits: {self._shown()}")
                if who.machine.state != "holds":
                    raise Broken(f"Ending: {who.uid} has no view: {self._shown()}")


def simulate(code: Any, seed: int) -> None:
    dice = random.Random(seed)
    world = World(code, dice.randint(2, 4), dice.randint(1, 3))
    while not world.over():
        choices, faulty = world.choices(), world.faulty()
        hit = faulty and (choices == [("rests",)] or dice.random() < 0.1)
        world.do(dice.choice(faulty if hit else choices))
        world.alike()
