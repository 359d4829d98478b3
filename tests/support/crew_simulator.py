"""A simulator of `training/crew/machine.py`: members of an elastic job, what they call, and what may go wrong.

Members go through rounds: boundary, work, `present`, a sum.  They are killed, stopped (their process stands still), or
late (their program does), they leave, and newcomers come: good ones, wrong ones, ones that load for long; a meeting
on which all agreed may not begin in time.  What `come`, `renew` and collective calls do is told here in their laws, not
in messages: tests/control/protocol has these.
Time is virtual.  What is due at one moment happens in an order that is chosen: by a seed, or each in turn (`walk`).
Broken names a law that does not hold.
"""

from __future__ import annotations

import functools
import io
import pickle
import random
from collections.abc import Iterator
from typing import Any

from hocket.errors import PeerLostError, TimeoutError
from support.lines import Broken

GRACE, WORK, CALL, LIMIT, HURRY, NEWCOMERS = 1, 2, 3, 4, 1, 2
"""Seconds: of the crew; of a round's work; of a sum; the crew's `timeout`; of `come` and `renew`."""
PART = 1
LATE, LONG, NEVER = 3, 11, 1 << 20
"""Seconds that who is late or stopped is: below the limit, above, for ever."""
ROUNDS, END, MOST = 2, 120, 3000
VAIN = range(5000, 100_000)
"""Seeds of worlds where a meeting may be in vain."""
FAULTS = ("kill", "late", "long", "stop", "stopped long", "stopped", "leave", "new", "wrong", "loads long", "in vain")
COST = {"late": LIMIT, "stop": LIMIT, "long": 2 * LIMIT, "stopped long": 2 * LIMIT, "stopped": 2 * LIMIT,
        "loads long": GRACE, "in vain": LIMIT}  # fmt: skip
"""Seconds that each may cost a healthy member in one call, beside a round that others end: the rest cost none."""
FOR = {"late": LATE, "long": LONG, "stop": LATE, "stopped long": LONG, "stopped": NEVER}


class Call:
    """One collective call of some ranks."""

    def __init__(self, group: tuple[int, ...], what: str) -> None:
        self.group, self.what = group, what
        self.entered: dict[int, Any] = {}
        self.failed = False
        self.torn: set[int] = set()
        """Members that were killed or stopped inside: not all of their parts may have been sent."""


class Generation:
    def __init__(self, number: int, members: list[int], infos: list[Any], previous: list[int | None]) -> None:
        self.number, self.members, self.infos, self.previous = number, members, infos, previous
        self.rounds: list[dict[int, Any]] = []
        self.late: list[set[int]] = []
        self.outcomes: list[tuple[dict[int, Any], dict[int, str]] | None] = []
        self.calls: dict[tuple[int, ...], list[Call]] = {}
        self.broken: set[tuple[int, ...]] = set()
        """Groups that have failed."""
        self.renewing: dict[int, tuple[Any, set[int], float]] = {}
        """Members that have called `renew`: what each says, whom it excludes, since when."""
        self.next: Generation | None = None
        self.ready = 0.0
        """When all have met."""
        self.vain = 0.0
        """Until then a meeting on which all agreed does not end."""


class Person:
    """A process, and its program."""

    def __init__(self, uid: int, made: dict[str, Any]) -> None:
        self.uid, self.made = uid, made
        self.machine: Any = None
        self.generation: Generation | None = None
        self.position, self.x = 0, ()
        self.phase, self.until = "boundary", 0.0
        """The next act of its program, and from when on."""
        self.waits: Any = None
        """The instruction that it waits for ..."""
        self.since = self.asked = 0.0
        """... and since when; and since when it is in one call of the crew."""
        self.number, self.counts, self.late = 0, dict[tuple[int, ...], int](), dict[int, float]()
        """Numbers of the round of `come`, and of its calls in each group; and who is late since when."""
        self.here: tuple[int, ...] = ()
        self.call: Any = None
        """The collective one that it is in, or was in last."""
        self.loads = 0
        """Seconds between its `init` and its first boundary."""
        self.alive, self.left, self.stopped, self.slept, self.healthy = True, False, 0.0, 0.0, True
        self.few = False
        """Was half of the members silent in a meeting?  It may end then, and has waited for that."""
        self.ended: Exception | None = None


class World:
    """`code`: the module, or a copy of it that lacks a line."""

    def __init__(self, code: Any, size: int, faults: int) -> None:
        self.code, self.faults, self.now = code, faults, 0.0
        self.all = [Person(uid, {"arrays": {}, "every": 4}) for uid in range(size)]
        self.lobby: list[int] = []
        self.newest = Generation(0, [*range(size)], [None] * size, [*range(size)])
        self.done: list[str] = []
        self.cost, self.had = 0, tuple[str, ...]()
        self.vains, self.vain = False, False
        """May a meeting be in vain?  Is the next one?"""
        for each in self.all:
            self._enter_generation(each, self.newest, False)

    def _enter_generation(self, who: Person, of: Generation, new: bool) -> None:
        who.generation, who.number, who.counts, who.late = of, 0, {}, {}
        if new:
            who.until, who.asked = self.now + who.loads, self.now + who.loads
        if who.machine is None:
            who.machine = self.code.MemberMachine(of.members.index(who.uid), len(of.members), of.number, new)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "code": None, "done": []}

    # --- what may happen now

    def choices(self) -> list[tuple[Any, ...]]:
        """All that may happen at this moment; when nothing may, time goes on."""
        while True:
            found = [each for who in self.all if self._runs(who) for each in self._of(who)] + self._decisions()
            if found:
                return found
            self._let_time_pass()

    def _runs(self, who: Person) -> bool:
        return who.alive and who.ended is None and self.now >= who.stopped and self.now >= who.until

    def _of(self, who: Person) -> Iterator[tuple[Any, ...]]:
        if who.machine is None:
            if who.uid not in self.lobby and who.phase == "boundary":
                yield "joins", who.uid
        elif who.waits is None:
            yield "program", who.uid
        else:
            for n, _ in enumerate(self._outcomes(who)):
                yield "hears", who.uid, n

    def faulty(self) -> list[tuple[Any, ...]]:
        if not self.faults:
            return []
        found: list[tuple[Any, ...]] = [(each, -1) for each in FAULTS[-4 : None if self.vains else -1]]
        for who in self.all:
            if who.alive and who.ended is None and self.now >= who.stopped:
                found += [(each, who.uid) for each in FAULTS[:-4] if each != "leave" or who.waits is None]
        return found

    def do(self, choice: tuple[Any, ...]) -> None:
        what, *more = choice
        self.done.append(f"{self.now:g} {' '.join(map(str, choice))}")
        if len(self.done) > MOST:
            raise Broken(f"Ending: they go on for ever: {self._shown()}")
        if what == "joins":
            self.lobby.append(more[0])
        elif what == "program":
            self._program(self.all[more[0]])
        elif what == "hears":
            who = self.all[more[0]]
            event = self._outcomes(who)[more[1]]
            event = event() if callable(event) else event
            if isinstance(who.waits, self.code.Meet):
                here = [self.all[uid] for uid in who.generation.members]
                awake = [each for each in here if self._counts(each)]
                who.few |= isinstance(event, self.code.Fails) and 2 * len(awake) <= len(here)
            self._limited(who)
            who.waits = None
            if who.phase == "sum":
                self._summed(who, event)
            else:
                self._act(who, event)
        elif what == "decides":
            self._decide(*more)
        else:
            self.faults -= 1
            self._fault(what, more[0])
        self._look()

    def _let_time_pass(self) -> None:
        times = [each for who in self.all if who.alive and who.ended is None for each in self._times(who)]
        later = [each for each in times if each > self.now]
        if not later or min(later) > END:
            raise Broken(f"Ending: nothing happens any more after {self.now:g} s: {self._shown()}")
        self.now = min(later)
        self._look()

    def _times(self, who: Person) -> Iterator[float]:
        yield from (who.stopped, who.until)
        if isinstance(who.waits, self.code.Come):
            yield from (who.since + self._grace(who), who.since + self._limit(who))
            yield from (since + HURRY for _, _, since in who.generation.renewing.values())
        elif who.waits is not None:
            yield from (who.since + self._limit(who), self.newest.ready, self.newest.vain)

    def _grace(self, who: Person) -> float:
        return LIMIT if who.waits.patient else GRACE

    def _limit(self, who: Person) -> float:
        if isinstance(who.waits, self.code.Come):
            return 2 * LIMIT if who.waits.patient else LIMIT
        return LIMIT if isinstance(who.waits, self.code.Meet) else CALL if who.phase == "sum" else PART

    # --- programs

    def _program(self, who: Person) -> None:
        code = self.code
        if who.phase == "boundary":
            who.asked = self.now
            self._act(who, code.Comes(code.BOUNDARY, who.position))
        elif who.phase == "present":
            who.asked = self.now
            self._act(who, code.Comes(code.PRESENT, who.position))
        else:
            if not who.machine.whole or who.made != self.all[0].made:
                raise Broken(f"Refused: {who.uid} adds what is no part of this state: {self._shown()}")
            who.asked, who.waits = self.now, "sum"
            self._enter(who, who.here, f"sum {who.position}", None)

    def _summed(self, who: Person, event: Any) -> None:
        if isinstance(event, self.code.Fails):
            who.phase = "breaks"
            self._act(who, self.code.Breaks(who.position, event.why))
            return
        who.x += (tuple(sorted(event)),)
        who.position += 1
        who.phase = "boundary"

    def _act(self, who: Person, event: Any) -> None:
        """The machine's instructions."""
        code = self.code
        *first, last = who.machine.take(event)
        for each in first:
            if isinstance(each, code.Leave):
                who.alive = False
        if isinstance(last, code.Return):
            self._limited(who)
            if who.phase == "breaks":
                raise Broken(f"Again: {who.uid} goes on in a round that has failed: {self._shown()}")
            self._over(who, last.result)
        elif isinstance(last, code.Raise):
            self._limited(who)
            if type(last.error).__name__ != "Again":
                self._ends(who, last.error)
            elif who.phase == "boundary":
                raise Broken(f"Again: {who.uid} is at a boundary: {self._shown()}")
            else:
                self._again(who)
        else:
            who.waits, who.since = last, self.now
            carry = {code.Come: self._comes, code.Meet: self._meets, code.Fit: self._fits, code.Move: self._moves}
            carry[type(last)](who)

    def _over(self, who: Person, result: Any) -> None:
        """Its program goes on ..."""
        if who.phase == "boundary":
            who.phase, who.until = "present", self.now + WORK
        else:
            who.here, who.phase = tuple(result), "sum"

    def _again(self, who: Person) -> None:
        """... or begins the round again."""
        who.phase = "boundary"

    def _ends(self, who: Person, error: Exception) -> None:
        who.ended = error
        none = not any(each.machine.whole for each in self.all if each.uid in self.newest.members and each.alive)
        if who.healthy and not (isinstance(error, TimeoutError) and who.few) and not none:
            raise Broken(f"Nobody healthy ends: {who.uid} has {error!r}: {self._shown()}")

    def _limited(self, who: Person) -> None:
        if who.healthy and not who.few and self.now - who.asked > self.cost + WORK:
            raise Broken(f"Limit: {who.uid} has waited for {self.now - who.asked:g} s: {self._shown()}")

    def _counts(self, who: Person) -> bool:
        """Has it been there all the time?"""
        return who.alive and self.now > max(who.stopped, who.until)

    # --- come

    def _says(self, who: Person, says: Any, compared: bool) -> Any:
        return says._replace(digest=hash(who.x) if compared else None, waiting=bool(self.lobby))

    def _comes(self, who: Person) -> None:
        of, number = who.generation, who.number
        if {*who.waits.late} != {*who.late} and not who.waits.patient:
            raise Broken(f"Waiting: {who.uid} does not wait for {who.waits.late} of {who.late}: {self._shown()}")
        while len(of.rounds) <= number:
            of.rounds.append({}), of.late.append(set()), of.outcomes.append(None)
        if of.outcomes[number] is None:
            of.rounds[number][self._rank(who)] = self._says(who, who.waits.says, who.waits.compared)
            of.rounds[number] = dict(sorted(of.rounds[number].items()))
            of.late[number] |= {*who.waits.late}

    def _decisions(self) -> list[tuple[Any, ...]]:
        found = []
        of = self.newest
        for number, came in enumerate(of.rounds):
            if of.outcomes[number] is None and came and of.next is None:
                found += [("decides", number, here) for here in self._complete(of, number)]
        return found

    def _complete(self, of: Generation, number: int) -> Iterator[tuple[int, ...]]:
        """The sets that may be agreed on to have come: those who came, and who was not waited for any more did not."""
        came, late = of.rounds[number], {*of.late[number]}
        waiting = [who for rank in came if (who := self.all[of.members[rank]]).alive and who.waits is not None
                   and isinstance(who.waits, self.code.Come) and who.number == number]  # fmt: skip
        living = {rank for rank, uid in enumerate(of.members) if self.all[uid].alive}
        awake = {rank for rank in living if self.now >= self.all[of.members[rank]].stopped}
        if any(self.now >= who.since + self._grace(who) for who in waiting if self._runs(who)):
            late |= living - {*came}
            slow = {rank for rank in came if rank in living - awake}
        else:
            slow = set()
        for here in {tuple(sorted(living & {*came})), tuple(sorted(living & {*came} - slow))}:
            asleep = {*here} - awake - slow
            enough = 2 * len(here) > len(of.members) or {*here} == living
            if enough and {*here} >= living - late - slow and not asleep and {*here} & awake:
                yield here

    def _decide(self, number: int, here: tuple[int, ...]) -> None:
        of = self.newest
        missing = [(rank, uid) for rank, uid in enumerate(of.members) if rank not in here]
        lost = {rank: "late" if self.all[uid].alive else "dead" for rank, uid in missing}
        of.outcomes[number] = {rank: of.rounds[number][rank] for rank in here}, lost

    def _came(self, who: Person) -> Any:
        of, number = who.generation, who.number
        outcome = of.outcomes[number]
        who.number = max(number + 1, 1 + max((n for n, each in enumerate(of.outcomes) if each is not None), default=0))
        infos, lost = outcome
        who.late = {rank: who.late.get(rank, self.now) for rank in lost}
        overdue = frozenset(rank for rank, since in who.late.items() if self.now - since > LIMIT)
        return self.code.Came(infos, lost, overdue)

    # --- renew

    def _meets(self, who: Person) -> None:
        of = who.generation
        says = self._says(who, who.waits.says, who.machine.whole)
        of.renewing[who.uid] = list(says), {of.members[rank] for rank in who.waits.without}, self.now

    def _excluded(self, of: Generation) -> set[int]:
        """By those that are awake, or have answered the leader's call before they were stopped."""
        awake = [since for by, (_, _, since) in sorted(of.renewing.items()) if self._runs(self.all[by])]
        counted = [by for by in of.renewing if self.all[by].alive
                   and (self._runs(self.all[by]) or awake and awake[0] <= self.all[by].slept)]  # fmt: skip
        return {uid for by in counted for uid in of.renewing[by][1]}

    def _look(self) -> None:
        """All that live, and that nobody excludes, have called: the next generation."""
        of = self.newest
        excluded = self._excluded(of)
        stay = [uid for uid in of.members if self.all[uid].alive and uid not in excluded]
        silent = [uid for uid in of.members if self.all[uid].alive and uid in excluded]
        if not stay or any(uid not in of.renewing or not self._runs(self.all[uid]) for uid in stay):
            return
        if silent and 2 * len(stay) <= len(of.members):
            return
        if self.vain:
            self.vain, of.vain = False, self.now + LIMIT
        if self.now < of.vain:
            return
        new = [uid for uid in self.lobby if self._runs(self.all[uid])]
        silent_new, self.lobby = [self.all[uid] for uid in self.lobby if uid not in new], []
        previous = [of.members.index(uid) for uid in stay] + [None] * len(new)
        infos = [of.renewing[uid][0] for uid in stay] + [None] * len(new)
        self.newest = of.next = Generation(of.number + 1, stay + new, infos, previous)
        self.newest.ready = self.now + NEWCOMERS * bool(silent_new)
        for who in silent_new:
            who.ended = PeerLostError("it did not come to its first meeting", [])
        for uid in new:
            self._enter_generation(self.all[uid], self.newest, True)
            self.all[uid].x = ("its own", uid)
        out = [self.all[uid] for uid in silent if self.all[uid].healthy and self.all[uid].ended is None]
        if out:
            raise Broken(f"Nobody healthy is left out: {[who.uid for who in out]}: {self._shown()}")

    def _met(self, who: Person) -> Any:
        of = who.generation.next
        self._enter_generation(who, of, False)
        infos = self.code.said(enumerate(of.infos))
        return self.code.Met(of.number, of.members.index(who.uid), infos, tuple(of.previous))

    # --- collective calls

    def _enter(self, who: Person, group: tuple[int, ...], what: str, part: Any) -> None:
        who.since = self.now
        calls = who.generation.calls.setdefault(group, [])
        index = who.counts[group] = who.counts.get(group, -1) + 1
        if index == len(calls):
            calls.append(Call(group, what))
        if calls[index].what != what:
            raise Broken(f"Matching: {what} meets {calls[index].what} in {group}: {self._shown()}")
        calls[index].entered = dict(sorted([*calls[index].entered.items(), (self._rank(who), part)]))
        who.call = calls[index]

    def _fits(self, who: Person) -> None:
        numbers = (who.position, who.x) if self._rank(who) == who.waits.donor else None
        self._enter(who, who.waits.ranks, "fit", (who.made, numbers))

    def _moves(self, who: Person) -> None:
        donor = self._rank(who) == who.waits.donor
        self._enter(who, who.waits.ranks, "move", (who.position, who.x) if donor else None)
        if not donor:
            if any(each and each[1] == who.x for each in who.call.entered.values()):
                raise Broken(f"Moving: {who.uid} has this state: {self._shown()}")
            who.x = who.x if who.waits.keeps else ("half", who.uid)

    def _rank(self, who: Person) -> int:
        return who.generation.members.index(who.uid)

    def _done(self, who: Person, call: Call) -> Any:
        if call.what.startswith("sum"):
            return [who.generation.members[rank] for rank in call.group]
        if call.what == "fit":
            return self.code.Fitted({rank: made for rank, (made, _) in call.entered.items()})
        who.position, who.x = call.entered[who.waits.donor]
        return self.code.Moved()

    # --- outcomes

    def _outcomes(self, who: Person) -> list[Any]:
        """The results that the instruction that it waits for may give now."""
        code, of = self.code, who.generation
        gone, late = PeerLostError("a rank is gone", []), who.since + self._limit(who)
        if isinstance(who.waits, code.Come):
            if len(of.outcomes) > who.number and of.outcomes[who.number] is not None:
                return [lambda: self._came(who)]
            came = of.rounds[who.number]
            vain = any(of.members.index(uid) not in came or self.now >= since + HURRY
                       for uid, (_, _, since) in of.renewing.items() if uid != who.uid)  # fmt: skip
            if of.next is not None or vain:
                return [code.Fails(gone)]
            missing = [rank for rank in range(len(of.members)) if rank not in came]
        elif isinstance(who.waits, code.Meet):
            if of.next is not None and self.now < of.next.ready:
                return []
            if of.next is not None:
                return [lambda: self._met(who)] if who.uid in of.next.members else [code.Fails(gone)]
            excluded = self._excluded(of)
            missing = [rank for rank, uid in enumerate(of.members) if self.all[uid].alive and uid not in excluded
                       and (uid not in of.renewing or not self._runs(self.all[uid]))]  # fmt: skip
        else:
            call = who.call
            torn = {rank for rank in call.torn if not (alive := self.all[of.members[rank]]).alive
                    or self.now < alive.stopped}  # fmt: skip
            whole = {*call.entered} >= {*call.group}
            done = functools.partial(self._done, who, call)
            if call.failed:
                return [code.Fails(gone), *([done] if whole and self._rank(who) in call.torn else [])]
            if whole and not torn:
                return [done]
            lost = [uid for rank in call.group if not self.all[uid := of.members[rank]].alive
                    or rank not in call.entered and (uid in of.renewing or of.next is not None)]  # fmt: skip
            if lost or call.group in of.broken or of.next is not None:
                return [code.Fails(gone), *([done] if whole else [])]
            missing = [rank for rank in call.group if rank not in call.entered or rank in torn]
            if self.now >= late:
                return [lambda: self._overdue(who, call, missing)]
            return []
        called = tuple(rank for rank, uid in enumerate(of.members) if uid in of.renewing)
        return [code.Fails(TimeoutError("late", missing), tuple(missing), called=called)] if self.now >= late else []

    def _overdue(self, who: Person, call: Call, missing: list[int]) -> Any:
        """All who wait in it hear that; and where the group was to be made, its parent ends."""
        call.failed = True
        who.generation.broken |= {call.group}
        if who.counts[call.group] == 0:
            who.generation.broken |= {tuple(range(len(who.generation.members)))}
        return self.code.Fails(TimeoutError("late", missing), tuple(missing))

    # --- faults

    def _fault(self, what: str, uid: int) -> None:
        self.had += (what,)
        few = "loads long" in self.had and (len(self.had) > 1 or len(self.all) < 3)  # it counts as a member
        # Who wakes just as it is left out may be needed for more than half, if another one is gone: all meet once more.
        woken = "stop" in self.had and bool({"kill", "leave"} & {*self.had})
        self.cost = sum(COST.get(each, 0) for each in self.had) + (2 * few + woken) * LIMIT
        if what == "in vain":
            self.vain = True
        elif uid < 0:
            who = Person(len(self.all), {"arrays": {}, "every": 5 if what == "wrong" else 4})
            who.healthy = what == "new"
            who.asked = self.now
            who.loads = LONG * (what == "loads long")
            self.all.append(who)
        if uid < 0:
            return
        who = self.all[uid]
        who.healthy = False
        if what in ("late", "long"):
            who.until = max(self.now, who.until) + FOR[what]
        elif what in FOR:
            who.stopped, who.slept = self.now + FOR[what], self.now
            self._tear(who)
        else:
            who.alive, who.left = False, what == "leave"
            self._tear(who)
            self.lobby = [each for each in self.lobby if each != uid]

    def _tear(self, who: Person) -> None:
        if who.waits is not None and not isinstance(who.waits, (self.code.Come, self.code.Meet)):
            who.call.torn.add(self._rank(who))

    # --- laws

    def over(self) -> bool:
        """Do all that are to go on hold enough?  Or is nobody left who has to go on?"""
        if not any(who.healthy and who.alive and who.ended is None and who.machine is not None for who in self.all):
            return True
        going = [who for who in self.all if who.alive and who.ended is None and who.stopped < NEVER]
        return all(who.machine is not None and who.position >= ROUNDS + 2 * who.healthy and self.now >= who.stopped
                   and self.now >= who.until for who in going)  # fmt: skip

    def alike(self) -> None:
        """Members of one generation with states of one position hold the same bits."""
        seen: dict[int, Any] = {}
        for who in self.all:
            if who.alive and who.ended is None and who.uid in self.newest.members and who.machine.whole:
                for n, parts in enumerate(who.x):
                    if seen.setdefault(n, parts) != parts:
                        raise Broken(f"Equal bits: round {n} is {seen[n]} and {parts}: {self._shown()}")

    def _shown(self) -> str:
        rows = [(who.uid, who.phase, who.machine and who.machine.state, who.position, who.ended) for who in self.all]
        return f"{rows}\n" + "\n".join(self.done[-60:])


def simulate(code: Any, seed: int, size: int | None = None) -> None:
    dice = random.Random(seed)
    world = World(code, size or dice.randint(2, 4), dice.randint(0, 3))
    world.vains = seed in VAIN
    while not world.over():
        choices = world.choices()
        faulty = world.faulty() if dice.random() < 0.08 else []
        world.do(dice.choice(faulty or choices))
        world.alike()


def walk(first: World) -> int:
    """Every order.  How many different moments there were."""
    code, begin = first.code, pickle.dumps(first)
    seen, ahead = {0}, [begin]
    # without a memo: worlds are alike that hold the same, whichever objects they share
    while ahead:
        moment = ahead.pop()
        world = pickle.loads(moment)
        world.code = code
        if world.over():
            continue
        for number, choice in enumerate([*world.choices(), *world.faulty()]):
            if number:
                world = pickle.loads(moment)
                world.code = code
                world.choices()
            world.do(choice)
            world.alike()
            key = io.BytesIO()
            pickler = pickle.Pickler(key)
            pickler.fast = True
            pickler.dump(world)
            if (then := hash(key.getvalue())) not in seen:
                seen.add(then)
                ahead.append(pickle.dumps(world))
    return len(seen)
