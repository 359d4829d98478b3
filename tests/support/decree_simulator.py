"""A simulator of `control/protocol/decree.py`: one seed is one generation of 2 to 5 ranks, with all that may go wrong.

Ranks call at random moments; they die, with proof or without, are stopped and go on, are cut off from each other and
come back; some call again, and exclude others in some of their calls; messages come late, in any order, twice; a store
grants once; strangers of other generations speak.  At the end nothing more goes wrong, and what is on its way arrives.
`simulate` raises Broken, which names the law.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from support.lines import Broken

BOGUS = "another generation's"


class Simulation:
    """`code`: the module (or a copy of it that lacks a line)."""

    def __init__(self, code: Any, seed: int) -> None:
        self.code, self.dice = code, random.Random(seed)
        self.n = self.dice.randint(2, 5)
        self.ranks = list(range(self.n))
        apart = random.Random(-1 - seed)
        self.new = {rank for rank in self.ranks[1:] if apart.random() < 0.4 * (seed % 2)}
        known = apart.randint(0, 1)
        self.met = [known + apart.randint(0, 1) for _ in self.ranks]
        """Do all know that all have come to the meeting?  By member."""
        self.decrees = [code.Decree(rank, self.ranks, 7, self.new) for rank in self.ranks]
        self.alive, self.stopped, self.down = set(self.ranks), set[int](), set[frozenset[int]]()
        self.flight: list[tuple[int, int, int, Any]] = []
        self.notices = {(a, b): deque[Any]() for a in self.ranks for b in self.ranks}
        self.proven: set[int] = set()
        self.ever_cut: set[int] = set()
        self.first: tuple[int, ...] | None = None
        self.sleepers = {rank for rank in self.ranks if self.dice.random() < 0.05}
        self.uncalled = [rank for rank in self.ranks if rank not in self.sleepers]
        self.excluded = tuple(rank for rank in self.ranks if self.dice.random() < 0.12)
        self.faults = self.dice.randint(0, 4)

    # --- what happens

    def run(self) -> None:
        for _ in range(self.dice.randint(5, 120)):
            self.step(wild=True)
        for rank in sorted(self.stopped):
            self.stopped.discard(rank)
        for rank in list(self.uncalled):
            self.call(rank)
        self.settle()
        for rank in sorted(self.alive) if self.excluded else ():  # time is over, and they exclude nobody any more
            if self.decrees[rank].made is None and rank not in self.uncalled:
                self.tell(rank, self.code.Call(f"says {rank}", met=self.met[rank]))
        self.settle()
        self.judge()

    def settle(self) -> None:
        """Deliver all that is on its way."""
        for _ in range(4000):
            if not self.step(wild=False):
                return
        raise Broken("Ending: they talk for ever")

    def step(self, wild: bool) -> bool:
        """One thing; False: nothing is left to happen."""
        dice = self.dice
        if wild and self.faults and dice.random() < 0.08:
            self.faults -= 1
            dice.choice([self.kill, self.kill, self.cut, self.cut, self.heal, self.stop])()
            return True
        if wild and dice.random() < 0.03:
            self.stranger()
        if wild and self.stopped and dice.random() < 0.1:
            self.stopped.discard(dice.choice(sorted(self.stopped)))
        if wild and self.uncalled and dice.random() < 0.2:
            self.call(dice.choice(self.uncalled))
            return True
        if wild and dice.random() < 0.04:
            self.call_again()
        notices = [key for key, queue in self.notices.items() if queue and key[0] in self.running]
        arriving = [i for i, (_, to, _, _) in enumerate(self.flight) if to in self.running]
        if notices and (not arriving or dice.random() < 0.3):
            rank, other = dice.choice(notices)
            self.tell(rank, self.notices[rank, other].popleft())
        elif arriving:
            i = dice.choice(arriving)
            by, to, generation, message = self.flight[i]
            if not (wild and dice.random() < 0.1):  # else it comes again
                self.flight[i] = self.flight[-1]
                self.flight.pop()
            self.carry_out(to, self.decrees[to].take(by, message, generation))
        return bool(notices or arriving)

    @property
    def running(self) -> set[int]:
        return self.alive - self.stopped

    def tell(self, rank: int, event: Any) -> None:
        self.carry_out(rank, self.decrees[rank].take(rank, event))

    def carry_out(self, by: int, instructions: list[Any]) -> None:
        for each in instructions:
            if isinstance(each, self.code.Claim):
                self.first = self.first or each.members
                self.notices[by, by].append(self.code.Granted(self.first))
            elif each.rank in self.alive and frozenset((by, each.rank)) not in self.down:
                self.flight.append((by, each.rank, each.generation, each.message))

    def call(self, rank: int) -> None:
        self.uncalled.remove(rank)
        self.say(rank)

    def call_again(self) -> None:
        rank = self.dice.choice(self.ranks)
        if self.decrees[rank].call is not None:
            self.say(rank)

    def say(self, rank: int) -> None:
        without = tuple(r for r in self.excluded if r != rank and self.dice.random() < 0.7)
        if rank in self.running:
            self.tell(rank, self.code.Call(f"says {rank}", without, met=self.met[rank]))

    def kill(self) -> None:
        rank = self.dice.choice(self.ranks)
        if rank in self.alive and len(self.alive) > 1:
            self.alive.discard(rank)
            self.cut_off([(rank, other) for other in self.ranks if other != rank])
            if self.dice.random() < 0.6:
                self.proven.add(rank)
                for other in self.ranks:
                    if other != rank:
                        self.notices[other, rank].append(self.code.Proven(rank))

    def cut(self) -> None:
        """One pair, or two parts."""
        a, b = self.dice.sample(self.ranks, 2)
        part = {rank for rank in self.ranks if self.dice.random() < 0.5}
        pairs = [(a, b)] if self.dice.random() < 0.3 else [(x, y) for x in part for y in self.ranks if y not in part]
        self.cut_off(pairs)

    def cut_off(self, pairs: list[tuple[int, int]]) -> None:
        for a, b in pairs:
            if frozenset((a, b)) not in self.down:
                self.down.add(frozenset((a, b)))
                self.ever_cut |= {a, b}
                self.notices[a, b].append(self.code.Away(b))
                self.notices[b, a].append(self.code.Away(a))
        self.flight = [
            each for each in self.flight
            if each[1] in self.alive and (frozenset(each[:2]) not in self.down or self.dice.random() < 0.5)
        ]

    def heal(self) -> None:
        for pair in sorted(self.down, key=sorted):
            a, b = sorted(pair)
            if pair <= self.alive and self.dice.random() < 0.7:
                self.down.discard(pair)
                self.notices[a, b].append(self.code.Back(b))
                self.notices[b, a].append(self.code.Back(a))

    def stop(self) -> None:
        self.stopped.add(self.dice.choice(self.ranks))

    def stranger(self) -> None:
        bogus = self.code.Made((self.ranks[-1],), (), (BOGUS,), ())
        message = self.dice.choice([self.code.Decided(bogus), self.code.Accept((99, 0), bogus)])
        self.flight.append((self.dice.choice(self.ranks), self.dice.choice(sorted(self.alive)), 6, message))

    # --- the laws

    def judge(self) -> None:
        made = {rank: self.decrees[rank].made for rank in sorted(self.alive) if self.decrees[rank].made is not None}
        values = list(made.values())
        if any(value != values[0] for value in values):
            raise Broken(f"Agreement, One component: {made}")
        for value in values[:1]:
            self.judge_value(value)
        self.judge_ending(made)

    def judge_value(self, value: Any) -> None:
        if BOGUS in value.infos:
            raise Broken("Fencing")
        if list(value.members) != sorted(set(value.members)):
            raise Broken(f"Order: {value}")
        if [rank for rank, _ in value.lost] != [rank for rank in self.ranks if rank not in value.members]:
            raise Broken(f"Naming: {value}")
        if value.infos != tuple(f"says {rank}" for rank in value.members):
            raise Broken(f"Validity: {value}")
        if self.too_few(set(value.members), False):
            raise Broken(f"Agreement, One component: {value}")
        for rank, how in value.lost:
            if how == "dead" and rank not in self.proven:
                raise Broken(f"Naming: {rank} is not proven dead")
            if how == "excluded" and rank not in self.excluded:
                raise Broken(f"Naming: nobody excludes {rank}")
            if how == "late":
                raise Broken(f"Validity: nobody called {rank} late")
            if how == "unreachable" and rank not in self.ever_cut:
                raise Broken(f"Validity: {rank} was there all the time")

    def too_few(self, part: set[int], granted_wanted: bool = True) -> bool:
        """Might others go on, too?  Counted are old members, all, or both, by what is known of the meeting."""
        met, old, every = {self.met[rank] for rank in part}, set(self.ranks) - self.new, set(self.ranks)

        def few(of: set[int]) -> bool:
            granted = not granted_wanted or self.first is None or {*self.first} & of == part & of
            return bool(every - part - self.proven) and 2 * len(part & of) < len(of) + (not granted)

        return any(map(few, [old] if 0 in met else [every] if 2 in met else [old, every]))

    def judge_ending(self, made: dict[int, Any]) -> None:
        """Members that can go on by the law have gone on."""
        for rank in self.alive:
            part = {other for other in self.alive if other == rank or frozenset((rank, other)) not in self.down}
            others = set(self.ranks) - part
            within = {frozenset((a, b)) for a in part for b in part if a != b}
            across = {frozenset((a, b)) for a in part for b in others}
            whole = not within & self.down and across <= self.down
            called = all(self.decrees[each].call is not None for each in part)
            if whole and called and not self.too_few(part) and rank not in made:
                raise Broken(f"Ending: {rank} of {part} waits")


def simulate(code: Any, seed: int) -> None:
    Simulation(code, seed).run()
