"""All interleavings of small cases: two workers, two clocks, a head and its copy, and a kill at every step.

The network delivers in order from each to each, at any moment.  After a kill everybody gets the next view, each at a
moment of its own.  The tables are sets of changes, so what a pull sees can be compared with the laws.
"""

from __future__ import annotations

import dataclasses
import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

import hocket
from hocket.training.server.shards.clocks import Clocks, staleness
from hocket.training.server.shards.shard import COPY, HEAD, Shard
from hocket.training.server.wire import messages as say
from hocket.training.server.wire.messages import Cut, Forward, Gone, Linked, Push, Role
from hocket.training.server.worker.heads import fate
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

    def dump(self, item: Any) -> Any:
        return self.held[item]

    def load(self, item: Any, value: Any) -> None:
        self.held[item] = value


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
    known: frozenset[Any] = frozenset()
    """Changes that had been acknowledged, to anybody, when its pull began."""

    @property
    def over(self) -> bool:
        return self.clock == self.clocks and self.stage == 0 and not self.waits

    def act(self) -> list[Any]:
        """Its next step, if it may make one: what to send."""
        if self.stage == 0:
            _, out = self.outbox.push((ITEMS[self.number % 2], self.number, self.clock))
            self.clock += 1
            _, more = self.outbox.tick(self.clock)
            out += more
            self.stage = int(self.clock < self.clocks or self.number == 1)
        else:
            self.waits, out = self.outbox.pull("all")
            self.stage = 0
        return out


class SimulatedJob:
    """Servers 0, 1, ... of which the first living whole one is the head; and the workers."""

    def __init__(
        self, rule: str, workers: int = 2, clocks: int = 1, servers: int = 2, copies: int = 1, eager: bool = True,
    ) -> None:  # fmt: skip
        """`eager`: workers hear at once what is sent to them, and of views, which leaves far fewer states."""
        self.bound, self.copies, self.eager = staleness(rule), copies, eager
        self.servers = {s: Shard(Sets(), Clocks(self.bound), whole=s <= copies) for s in range(servers)}
        self.workers = {w: Worker(w, clocks, Outbox(w)) for w in range(1, workers + 1)}
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
                cut = Cut(self.newest) if s == self.views[self.newest][0] else None
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
            self.tell(chain[0], Cut(self.newest))
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
        if kind == "act":
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
        bound = worker.clock - self.bound
        due = {(ITEMS[w % 2], w, c) for w in living for c in range(worker.clocks) if c < bound}
        due |= {(ITEMS[worker.number % 2], worker.number, c) for c in range(worker.clock)}
        assert due <= seen, f"worker {worker.number} at clock {worker.clock} sees {seen}, lacks {due - seen}"
        assert worker.known <= seen, f"{worker.known - seen} were acknowledged, and are not seen"
        for server in self.chain():
            assert seen <= server.store.read(None), "a pull has seen what is not on both"

    def chain(self) -> list[Shard]:
        """The living replicas that hold the shard."""
        return [self.servers[s] for s in self.views[self.newest] if ("s", s) not in self.dead and self.servers[s].whole]

    def check(self) -> None:
        """In every state."""
        for replica in self.chain():
            for held in replica.store.held.values():
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
        if made and isinstance(made, dict) and isinstance(next(iter(made.values())), (Shard, Worker)):
            return {key: clone(each) for key, each in made.items()}
        return made.copy()
    if isinstance(made, (SimulatedJob, Worker, Shard, Outbox, Clocks, Sets)):
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
    if isinstance(made, (SimulatedJob, Worker, Shard, Outbox, Clocks, Sets)):
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
        if kind == "kill":
            job.kill(what)
        else:
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
            if kind == "kill":
                then.kill(what)
            else:
                then.step(kind, what)
            then.settle()
            then.check()
            key = hash(frozen(then))
            if key not in seen:
                seen.add(key)
                left.append(then)
    return len(seen)


HEAD_DIES, COPY_DIES, WORKER_DIES = ("s", 0), ("s", 1), ("w", 2)


@pytest.mark.parametrize(("rule", "least"), [("bsp", 1000), ("ssp:1", 1000), ("async", 1000)])
def test_every_order_of_two_workers_and_two_clocks(rule: str, least: int) -> None:
    assert walk(SimulatedJob(rule, clocks=2, servers=1, copies=0)) >= least


def test_every_order_with_a_copy() -> None:
    assert walk(SimulatedJob("bsp", servers=2)) > 3000


@pytest.mark.parametrize("who", [HEAD_DIES, COPY_DIES, WORKER_DIES])
def test_every_order_and_a_death_at_every_step(who: Any) -> None:
    """One worker, or two where one of them dies."""
    workers = 1 if who[0] == "s" else 2
    assert walk(SimulatedJob("bsp", workers=workers, servers=2, copies=int(who[0] == "s")), (who,)) > 100


@pytest.mark.more
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("servers", "who"), [(2, HEAD_DIES), (2, COPY_DIES), (2, WORKER_DIES), (3, COPY_DIES)])
def test_every_order_of_two_workers_and_a_death_at_every_step(servers: int, who: Any) -> None:
    assert walk(SimulatedJob("bsp", servers=servers), (who,)) > 30000


@pytest.mark.parametrize("servers", [2, 3])
@pytest.mark.parametrize("rule", ["bsp", "ssp:1", "async"])
def test_random_orders_with_deaths(rule: str, servers: int) -> None:
    """Three workers; what is sent to them may be late, too; with a third server the copy is filled anew."""
    for seed in range(150):
        job = SimulatedJob(rule, workers=3, clocks=2, servers=servers, eager=seed % 2 == 0)
        wander(job, (HEAD_DIES, COPY_DIES, WORKER_DIES), f"{rule} {servers} {seed}")


def test_a_copy_refuses_a_change_that_comes_before_another() -> None:
    shard = Shard(Sets(), Clocks(0), whole=True)
    shard.take(Role(1, False, True, frozenset({1})))
    shard.take(Forward(1, 1, Push(1, 1, 1, ("a", 1, 0))))
    with pytest.raises(hocket.TransportError, match="change 3 of a shard came to its copy, which has 1"):
        shard.take(Forward(1, 3, Push(1, 1, 3, ("a", 1, 2))))


@pytest.mark.parametrize("servers", [2, 3])
def test_random_orders_with_links_that_end(servers: int) -> None:
    for seed in range(100):
        job = SimulatedJob("ssp:1", workers=3, clocks=2, servers=servers, eager=seed % 2 == 0)
        wander(job, (HEAD_DIES, COPY_DIES), f"cuts {servers} {seed}", cuts=0.15)


def test_what_is_lost_is_counted_without_clocks() -> None:
    """Nor what was refused; and a client says what became of what was acknowledged."""
    outbox = Outbox(1)
    outbox.view(0)
    outbox.take(say.Welcome(0, 0, 0))
    for number in range(1, 11):  # 1, 4, 7 and 10 are clocks, 2 is refused
        outbox.tick(number) if number % 3 == 1 else outbox.push(number)
    outbox.take(say.Refused(0, 2, "why", True))
    outbox.take(say.Ack(0, 6, 3))
    outbox.take(say.Ack(0, 10, 6))
    assert "a snapshot has 3 of the 5 pushes" in fate(outbox)
    outbox.view(1)
    outbox.take(say.Welcome(1, 6, 0))
    assert outbox.lost == 2
    outbox.view(2)
    outbox.take(say.Welcome(2, 0, 0))
    assert outbox.lost == 5
