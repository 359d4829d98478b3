"""Jobs of shards and workers without I/O, walked through in every order, or in random ones.

The network delivers in order from each to each, at any moment.  After a kill everybody gets the next view, each at a
moment of its own.  The tables are sets of changes, so what a pull sees can be compared with the laws.
"""

from __future__ import annotations

import dataclasses
import random
from collections import deque
from collections.abc import Iterator
from typing import Any

from hocket.training.server.shards.clocks import Clocks, staleness
from hocket.training.server.shards.rounds import Round
from hocket.training.server.shards.shard import COPY, HEAD, Shard
from hocket.training.server.wire.messages import Gone, Linked, Role, Unlinked
from hocket.training.server.worker.outbox import Outbox

ITEMS = ("a", "b")


class Sets:
    """A table whose items hold the changes that were made to them, in order."""

    def __init__(self) -> None:
        self.held: dict[str, tuple[Any, ...]] = dict.fromkeys(ITEMS, ())

    def check(self, change: Any) -> str:
        return "bad" if change == "bad" else ""

    def apply(self, change: Any) -> None:
        self.held[change[0]] += (change,)

    def read(self, what: Any) -> Any:
        return frozenset(change for held in self.held.values() for change in held)

    def items(self) -> list[Any]:
        return list(ITEMS)

    def all_of(self, item: str) -> list[Any]:
        """Changes that were made to it."""
        return [*self.held[item]]

    def dump(self, item: Any) -> Any:
        return self.held[item]

    def load(self, item: Any, value: Any) -> None:
        self.held[item] = value

    def clear(self) -> None: ...

    def round(self, what: Any) -> tuple[Any, Round] | None:
        return None

    def rounds(self) -> list[tuple[Any, Round]]:
        return []

    def step(self, item: Any, clock: int, workers: int) -> None:
        raise AssertionError("no item has rounds")


class Means(Sets):
    """Items of rounds: they hold steps, each with its clock and the set of changes that it took."""

    def __init__(self) -> None:
        super().__init__()
        self.gathered: dict[str, tuple[Any, ...]] = dict.fromkeys(ITEMS, ())
        self.of = {item: Round() for item in ITEMS}

    def apply(self, change: Any) -> None:
        self.gathered[change[0]] += (change,)

    def read(self, what: Any) -> Any:
        return self.held[what[0]] if what else frozenset(change for item in ITEMS for change in self.all_of(item))

    def all_of(self, item: str) -> list[Any]:
        return [*self.gathered[item], *(change for _, _, changes in self.held[item] for change in changes)]

    def dump(self, item: Any) -> Any:
        return self.held[item], self.gathered[item], tuple(self.of[item].numbers())

    def load(self, item: Any, value: Any) -> None:
        self.held[item], self.gathered[item], numbers = value
        self.of[item] = Round.restored(numbers)

    def round(self, what: Any) -> tuple[Any, Round] | None:
        return what[0], self.of[what[0]]

    def rounds(self) -> list[tuple[Any, Round]]:
        return [*self.of.items()]

    def step(self, item: Any, clock: int, workers: int) -> None:
        if self.gathered[item] and clock > self.of[item].done:
            self.held[item] += ((self.of[item].done, workers, frozenset(self.gathered[item])),)
        self.gathered[item] = ()
        self.of[item].step(clock)


@dataclasses.dataclass
class Worker:
    """It pushes one change, ticks and pulls, in each clock; only worker 1 pulls in the last."""

    number: int
    clocks: int
    outbox: Outbox
    view: int = 0
    clock: int = 0
    stage: int = 0
    waits: int = 0
    items: int = 2
    """Into so many items all workers push."""
    known: frozenset[Any] = frozenset()
    """Changes that had been acknowledged, to anybody, when its pull began."""

    @property
    def item(self) -> str:
        return ITEMS[self.number % self.items]

    @property
    def over(self) -> bool:
        return self.clock == self.clocks and self.stage == 0 and not self.waits

    def act(self) -> list[Any]:
        """Its next step, if it may make one: what to send."""
        if self.stage == 0:
            _, out = self.outbox.push((self.item, self.number, self.clock))
            self.clock += 1
            _, more = self.outbox.tick(self.clock)
            out += more
            self.stage = int(self.clock < self.clocks or self.number == 1)
        else:
            self.waits, out = self.outbox.pull((self.item,))
            self.stage = 0
        return out


class SimulatedJob:
    """Servers 0, 1, ... of which the first living whole one is the head; and the workers."""

    def __init__(
        self, rule: str, workers: int = 2, clocks: int = 1, servers: int = 2, copies: int = 1, eager: bool = True,
        store: type[Sets] = Sets, items: int = 2,
    ) -> None:  # fmt: skip
        """`eager`: workers hear at once what is sent to them, and of views, which leaves far fewer states."""
        self.bound, self.copies, self.eager = staleness(rule), copies, eager
        self.servers = {s: Shard(store(), Clocks(self.bound), whole=s <= copies) for s in range(servers)}
        self.workers = {w: Worker(w, clocks, Outbox(w), items=items) for w in range(1, workers + 1)}
        self.links: dict[tuple[Any, Any], tuple[Any, ...]] = {}
        self.views: dict[int, tuple[int, ...]] = {0: tuple(range(copies + 1))}
        self.dead: set[Any] = set()
        self.of: dict[Any, int] = {}
        self.newest = 0
        self.acknowledged: set[Any] = set()
        for s in self.servers:
            self.install(("s", s), 0)
        for w, worker in self.workers.items():
            worker.outbox.clock = 0
            self.install(("w", w), 0)

    # --- steps

    def install(self, who: Any, view: int) -> None:
        self.of[who] = view
        kind, number = who
        chain = self.views[view]
        if kind == "w":
            self.post(who, ("s", chain[0]), self.workers[number].outbox.view(view))
        elif number in chain:
            living = frozenset(w for w in self.workers if ("w", w) not in self.dead)
            role = Role(view, chain[0] == number, len(chain) > 1, living)
            self.tell(number, role)

    def tell(self, server: int, message: Any) -> None:
        chain = self.views[self.of["s", server]]
        for to, out in self.servers[server].take(message):
            if to == COPY:
                target: Any = ("s", chain[1])
            elif to == HEAD:
                target = ("s", chain[0])
            else:
                target = ("w", to)
            self.post(("s", server), target, [out])

    def post(self, source: Any, to: Any, out: list[Any]) -> None:
        if to not in self.dead and out:
            self.links[source, to] = self.links.get((source, to), ()) + tuple(out)

    def kill(self, who: Any) -> None:
        """Its messages are lost, and so are those to it; each that had a link to it hears that some time."""
        self.dead.add(who)
        for source, to in [*self.links]:
            if who in (to, source):
                del self.links[source, to]
        for s in self.servers:
            if ("s", s) not in self.dead:
                cut = Unlinked(self.newest) if s == self.views[self.newest][0] else None
                heard = Gone(who[1]) if who[0] == "w" else cut
                if heard is not None:
                    self.links[who, ("s", s)] = (heard,)
        if who[0] == "s":
            self.newest += 1
            left = [s for s in self.views[self.newest - 1] if s != who[1]]
            whole = [s for s in left if self.servers[s].whole] or left
            spare = [s for s in self.servers if ("s", s) not in self.dead and s not in whole]
            self.views[self.newest] = tuple((whole + spare)[: self.copies + 1])

    def cut(self) -> None:
        """The link of the head and its copy ends, both live, and there is a new one: what was on its way is lost."""
        chain = self.views[self.newest]
        pair = [("s", s) for s in chain[:2]]
        if len(pair) == 2 and all(self.of[who] == self.newest and who not in self.dead for who in pair):
            for link in (tuple(pair), tuple(reversed(pair))):
                self.links.pop(link, None)
            self.tell(chain[0], Unlinked(self.newest))
            self.tell(chain[0], Linked(self.newest))

    def settle(self) -> None:
        """Let workers hear all."""
        for w in self.workers if self.eager else ():
            if ("w", w) not in self.dead and self.of["w", w] < self.newest:
                self.install(("w", w), self.newest)
        while self.eager and (link := next((link for link in self.links if link[1][0] == "w"), None)):
            self.step("deliver", link)

    def steps(self) -> Iterator[tuple[str, Any]]:
        for link in self.links:
            yield "deliver", link
        for who in self.of:
            if self.of[who] < self.newest and who not in self.dead:
                yield "view", who
        for w, worker in self.workers.items():
            if ("w", w) not in self.dead and not worker.over and not worker.waits and worker.outbox.ready:
                yield "act", w

    def step(self, kind: str, what: Any) -> None:
        if kind == "kill":
            self.kill(what)
        elif kind == "act":
            worker = self.workers[what]
            worker.known = frozenset(self.acknowledged) if worker.stage else worker.known
            self.post(("w", what), self.head_of(what), worker.act())
        elif kind == "view":
            self.install(what, self.newest)
        else:
            first, *rest = self.links[what]
            if rest:
                self.links[what] = tuple(rest)
            else:
                del self.links[what]
            (kind, number) = what[1]
            if kind == "s":
                self.tell(number, first)
            else:
                self.hear(number, first)

    def head_of(self, worker: int) -> Any:
        return ("s", self.views[self.of["w", worker]][0])

    def hear(self, number: int, message: Any) -> None:
        worker = self.workers[number]
        before = dict(worker.outbox.pushes)
        ended, out = worker.outbox.take(message)
        self.post(("w", number), self.head_of(number), out)
        for each in ended:
            change = before.get(each.number)
            if isinstance(change, tuple) and type(change) is tuple:
                self.acknowledged.add(change)
            if each.number == worker.waits:
                worker.waits = 0
                self.judge(worker, each.value)

    # --- laws

    def judge(self, worker: Worker, seen: set[Any]) -> None:
        """Judge the changes that a pull at the worker's clock has seen."""
        living = [w for w in self.workers if ("w", w) not in self.dead]
        if isinstance(self.servers[0].store, Means):
            self.judge_steps(worker, seen, living)
            return
        bound = worker.clock - self.bound
        due = {(ITEMS[w % 2], w, c) for w in living for c in range(worker.clocks) if c < bound}
        due |= {(ITEMS[worker.number % 2], worker.number, c) for c in range(worker.clock)}
        assert due <= seen, f"worker {worker.number} at clock {worker.clock} sees {seen}, lacks {due - seen}"
        assert worker.known <= seen, f"{worker.known - seen} were acknowledged, and are not seen"
        for server in self.chain():
            assert seen <= server.store.read(None), "a pull has seen what is not on both"

    def judge_steps(self, worker: Worker, seen: Any, living: list[int]) -> None:
        """One step for each clock before the worker's own, by what all have pushed in it, and no later one."""
        assert [clock for clock, *_ in seen] == [*range(worker.clock)], f"at clock {worker.clock}: {seen}"
        for clock, workers, changes in seen:
            assert len(living) <= workers <= len(self.workers), f"a mean of {workers}"
            assert {change[2] for change in changes} == {clock}, f"a step of clock {clock} has {changes}"
            due = {(worker.item, w, clock) for w in living if self.workers[w].item == worker.item}
            assert due <= changes, f"the step of clock {clock} lacks {due - changes}"
        for server in self.chain():
            assert server.store.held[worker.item][: len(seen)] == seen, "a pull has seen a step that is not on both"

    def chain(self) -> list[Shard]:
        """The living replicas that hold the shard."""
        return [self.servers[s] for s in self.views[self.newest] if ("s", s) not in self.dead and self.servers[s].whole]

    def check(self) -> None:
        """In every state."""
        for replica in self.chain():
            for held in map(replica.store.all_of, ITEMS):
                assert len(set(held)) == len(held), f"counted twice: {held}"
            assert self.acknowledged <= replica.store.read(None), "acknowledged, and not on both"

    def end(self) -> None:
        """Nothing moves any more."""
        for w, worker in self.workers.items():
            assert ("w", w) in self.dead or worker.over, f"worker {w} waits for ever at clock {worker.clock}"
            assert ("w", w) in self.dead or not worker.outbox.pushes
        chain = self.chain()
        assert all(each.store.held == chain[0].store.held for each in chain), "the copy differs"
        assert all(each.applied == chain[0].applied for each in chain)


def clone(made: Any) -> Any:
    """A copy of what changes."""
    if isinstance(made, (dict, list, deque, set)):
        if made and isinstance(made, dict) and isinstance(next(iter(made.values())), (Shard, Worker, Round)):
            return {key: clone(each) for key, each in made.items()}
        return made.copy()
    if isinstance(made, (SimulatedJob, Worker, Shard, Outbox, Clocks, Sets, Round)):
        other = object.__new__(type(made))
        other.__dict__.update({name: clone(value) for name, value in vars(made).items()})
        return other
    return made


def frozen(made: Any) -> Any:
    """States that go on alike are equal."""
    if isinstance(made, dict):
        return frozenset((key, frozen(each)) for key, each in made.items())
    if isinstance(made, (list, deque, tuple)):
        return tuple(map(frozen, made))
    if isinstance(made, set):
        return frozenset(made)
    if isinstance(made, (SimulatedJob, Worker, Shard, Outbox, Clocks, Sets, Round)):
        return tuple(frozen(value) for value in vars(made).values())
    return made


def wander(job: SimulatedJob, kills: tuple[Any, ...], seed: str, cuts: float = 0.0) -> None:
    """One random order of steps; one of `kills` dies at one of the first, chosen by lot, and links end now and then."""
    dice = random.Random(seed)
    until_kill = dice.randrange(40) if kills else -1
    while steps := list(job.steps()):
        kind, what = dice.choice(steps)
        if until_kill == 0:
            kind, what = "kill", dice.choice(kills)
        until_kill -= 1
        if dice.random() < cuts:
            job.cut()
            continue
        job.step(kind, what)
        job.settle()
        job.check()
    job.end()


def walk(job: SimulatedJob, kills: tuple[Any, ...] = ()) -> int:
    """Every order of steps; and at each step one of `kills` may die, if nobody has.  How many states there are."""
    seen: set[int] = set()
    left = [job]
    while left:
        now = left.pop()
        steps: list[tuple[str, Any]] = list(now.steps())
        if not steps:
            now.end()
        if not now.dead:
            steps += [("kill", who) for who in kills]
        for kind, what in steps:
            then = clone(now)
            then.step(kind, what)
            then.settle()
            then.check()
            key = hash(frozen(then))
            if key not in seen:
                seen.add(key)
                left.append(then)
    return len(seen)
