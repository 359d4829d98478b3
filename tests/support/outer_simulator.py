"""A simulator of `training/outer/loop.py` on top of the crew's: members train, average behind that, and finish."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from support import crew_simulator as crew
from support.crew_simulator import LIMIT, WORK, Call, Person
from support.lines import Broken

STEPS, STEP = 4, 1
"""Steps that a program makes before it finishes; seconds of one: a round is shorter than the limit."""


class Flight(NamedTuple):
    number: int
    due: int
    at: tuple[int, int]
    call: Call


class World(crew.World):
    """`loops`: the module, or a copy that lacks a line."""

    def __init__(
        self, code: Any, loops: Any, size: int, faults: int, paces: list[int], delay: int, fragments: int
    ) -> None:
        self.loops, self.paces, self.delay, self.fragments = loops, paces, delay, fragments
        self.minds, self.landing = dict[int, Any](), dict[int, Flight]()
        """Each one's loop, and the round whose end it waits for."""
        super().__init__(code, size, faults)
        self.finishing: set[int] = set()

    def _loop(self, who: Person) -> Any:
        if who.uid not in self.minds:
            every = self.paces[who.uid % len(self.paces)]
            self.minds[who.uid] = self.loops.Loop(self.fragments, every, self.delay, "steps", len(self.paces) > 1)
        return self.minds[who.uid]

    # --- programs

    def _program(self, who: Person) -> None:
        loops, loop, who.asked = self.loops, self._loop(who), self.now
        if not loop._begun:
            self._goes(who, loops.Dropped())
        elif loop.steps < STEPS:
            self._goes(who, loops.Trained(1))
        else:
            self.finishing.add(who.uid)
            self._goes(who, loops.Finish())

    def _goes(self, who: Person, event: Any) -> None:
        loops, loop, code = self.loops, self._loop(who), self.code
        act = loop.take(event)
        if isinstance(act, loops.Rest):
            who.phase, who.until = "works", self.now + STEP
            if who.uid in self.finishing:
                self._finishes(who)
        elif isinstance(act, loops.Meet):
            who.phase = "boundary"
            self._act(who, code.Comes(code.BOUNDARY, who.position, loop.patient))
        elif isinstance(act, loops.Come):
            who.phase = "present"
            self._act(who, code.Comes(code.PRESENT, who.position, loop.patient))
        elif isinstance(act, loops.Begin):
            if not who.machine.whole or who.made != self.all[0].made:
                raise Broken(f"Refused: {who.uid} adds what is no part of this state: {self._shown()}")
            self._enter(who, who.here, f"sum {act.number}", None)
            self._goes(who, loops.Begun(Flight(act.number, act.due, act.at, who.call)))
        else:
            self.landing[who.uid] = act.flight
            who.phase, who.waits, who.call = "sum", "sum", act.flight.call

    def _over(self, who: Person, result: Any) -> None:
        words = who.machine.words
        if who.phase == "boundary":
            self._goes(who, self.loops.Met(words))
        else:
            who.here = tuple(result)
            self._goes(who, self.loops.Gathered(words))

    def _again(self, who: Person) -> None:
        self._goes(who, self.loops.Dropped())

    def _summed(self, who: Person, event: Any) -> None:
        if isinstance(event, self.code.Fails):
            super()._summed(who, event)
            return
        who.x += (tuple(sorted(event)),)
        flight = self.landing[who.uid]
        who.position = flight.number
        self._goes(who, self.loops.Landed(flight))

    def _finishes(self, who: Person) -> None:
        """It leaves: the others may still be about to finish."""
        if self._loop(who)._trained:
            raise Broken(f"Finish: what {who.uid} has trained is not averaged: {self._shown()}")
        who.alive, who.left = False, True
        self._tear(who)

    # --- the crew

    def _says(self, who: Person, says: Any, compared: bool) -> Any:
        return super()._says(who, says, compared)._replace(word=self._loop(who).word)

    def _fits(self, who: Person) -> None:
        numbers = (who.position, who.x, self._loop(who).numbers()) if self._rank(who) == who.waits.donor else None
        self._enter(who, who.waits.ranks, "fit", (who.made, numbers))

    def _moves(self, who: Person) -> None:
        super()._moves(who)
        if self._rank(who) == who.waits.donor:
            who.call.entered[self._rank(who)] += (self._loop(who).numbers(),)

    def _done(self, who: Person, call: Call) -> Any:
        if call.what == "move":
            who.position, who.x, numbers = call.entered[who.waits.donor]
            if self._rank(who) != who.waits.donor:
                self._loop(who).load(numbers)
            return self.code.Moved()
        return super()._done(who, call)

    def _tear(self, who: Person) -> None:
        super()._tear(who)
        if (flight := self._loop(who)._flight) is not None:
            flight.call.torn.add(self._rank(who))

    def _limited(self, who: Person) -> None:
        patient = 2 * LIMIT * (who.uid in self.finishing) + 5 * WORK
        if who.healthy and not who.few and self.now - who.asked > self.cost + patient:
            raise Broken(f"Limit: {who.uid} has waited for {self.now - who.asked:g} s: {self._shown()}")

    def over(self) -> bool:
        going = [who for who in self.all if who.alive and who.ended is None and who.stopped < crew.NEVER]
        return not any(who.healthy and who.machine is not None for who in going)


def simulate(code: Any, loops: Any, seed: int) -> None:
    """A third of the jobs have members whose paces differ, and that count by what they have trained."""
    dice = random.Random(seed)
    fragments = dice.choice((1, 1, 2))
    paces = [each * fragments for each in dice.choice(((1,), (2,), (3,), (3,), (1, 2), (2, 3)))]
    delay = dice.randrange(min(paces) // fragments)
    world = World(code, loops, dice.randint(2, 4), dice.randint(0, 3), paces, delay, fragments)
    while not world.over():
        choices = world.choices()
        faulty = world.faulty() if dice.random() < 0.08 else []
        world.do(dice.choice(faulty or choices))
        world.alike()
