"""Workers, servers and the bounded ways between them, simulated: no waits form a circle.

Links, replicas and outboxes are the real ones; a communicator of two is a pair of ways that hold so many messages
unread.  Who has to wait says for what; when nobody can go on, those who are not done wait for each other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.training import Range
from hocket.training.server.replica import Replica
from hocket.training.server.shards.clocks import staleness
from hocket.training.server.shards.shard import HEAD
from hocket.training.server.shards.store import Change, What
from hocket.training.server.tables import Places
from hocket.training.server.wire.frames import FORWARD, PUSH, SHORT, framed, message
from hocket.training.server.wire.link import EACH, SURE, ServerLink
from hocket.training.server.wire.messages import OPEN, Gone, Role, Unlinked
from hocket.training.server.worker.outbox import Outbox

Wait = Callable[[], bool]
Act = Iterator[Wait]
"""Yields what it waits for."""


class Blocks(Exception):
    """A call would wait for room."""


class Work:
    def __init__(self) -> None:
        self.sent = False

    def done(self) -> bool:
        return self.sent


class Way:
    """Holds `room` messages unread; what was posted beyond them waits with its sender."""

    def __init__(self, room: int) -> None:
        self.room, self.held = room, deque[tuple[int, Any]]()
        self.posted = deque[tuple[Work, tuple[int, Any]]]()

    def fits(self) -> bool:
        return len(self.held) < self.room and not self.posted

    def put(self, tag: int, array: Any) -> Work:
        work = Work()
        self.posted.append((work, (tag, array.copy())))
        self._move()
        return work

    def pop(self) -> tuple[int, Any]:
        first = self.held.popleft()
        self._move()
        return first

    def _move(self) -> None:
        while self.posted and len(self.held) < self.room:
            work, each = self.posted.popleft()
            work.sent = True
            self.held.append(each)


class Comm:
    """One end of a pair.  `patient`: its blocking calls may wait."""

    def __init__(self, rank: int, out: Way, into: Way, over: list[bool], patient: bool) -> None:
        self.rank, self.out, self.into, self.over, self.patient = rank, out, into, over, patient

    def set_timeout(self, seconds: float) -> None: ...

    def prepare(self, kind: str, array: Any = None, *, out: Any = None, tag: int, **ends: int) -> Any:
        return Prepared(self, tag, array) if kind == "send" else lambda: self.recv(out, 0, tag)

    def send(self, array: Any, peer: int, tag: int, async_op: bool = False) -> Any:
        if self.over:
            raise hocket.PeerLostError("it is dead", [])
        if not async_op and not self.out.fits():
            assert self.patient, "a server waits for a link"
            raise Blocks
        return self.out.put(tag, array)

    def recv(self, room: Any, peer: int, tag: int) -> Any:
        came, array = self.into.pop()
        assert came == tag
        room[:] = array.view(room.dtype)
        return room


@dataclasses.dataclass
class Prepared:
    comm: Comm
    tag: int
    array: Any

    def __call__(self) -> None:
        self.comm.send(self.array, 0, self.tag)

    def start(self) -> Any:
        return self.comm.send(self.array, 0, self.tag, async_op=True)


def pair(room: int, blocking: bool) -> tuple[ServerLink, ServerLink]:
    """The end that made it, and the other one; `blocking`: that one waits where it answers, as servers once did."""
    there, back, over = Way(room), Way(room), list[bool]()
    one, other = Comm(1, there, back, over, True), Comm(0, back, there, over, blocking)
    return ServerLink(one, to_server=True), ServerLink(other)


def arrived(link: ServerLink) -> Any:
    """The message that has come, whole."""
    tag, array = link.comm.into.held[0]
    frame = link.short(array.nbytes, lambda link, words: True) if tag == SHORT else link.header()
    if tag != SHORT and frame.follows:
        frame = link.rest(frame.words, lambda link, words: True)
    payload = frame.payload
    if payload is not None and frame.words[0] & 0xFF in (PUSH, FORWARD):
        payload = payload.view(np.float32)
    if frame.words[0] & 0xFF == PUSH and frame.words[4]:
        link.shown(frame.words[4])
    return frame.words, message(frame.words, frame.keys, payload)


def whole(link: ServerLink) -> bool:
    """A header has come, and what it tells of."""
    held = link.comm.into.held
    return bool(held) and (held[0][0] == SHORT or len(held) > bool(held[0][1][6]))


class Server:
    """The reader of one server: hears all links, and answers at once."""

    def __init__(self, job: Job, number: int) -> None:
        self.job, self.number, self.uid = job, number, 100 + number
        self.links: list[ServerLink] = []
        self.replicas: dict[int, Replica] = {}
        self.workers: dict[int, ServerLink] = {}
        self.generation, self.dead = -1, False

    def install(self, view: list[tuple[int, int | None]]) -> None:
        """`view`: the head and the copy of each shard."""
        job, self.generation = self.job, self.job.generation
        for shard, (head, copy) in enumerate(view):
            if self.number not in (head, copy):
                self.replicas.pop(shard, None)
                continue
            if shard not in self.replicas:
                self.replicas[shard] = Replica(job.layout, shard, job.bound, whole=head == self.number)
            to = job.connect(self.uid, job.servers[copy]) if head == self.number and copy is not None else None
            if to is not None:
                self.links.append(to)
            workers = frozenset(each.uid for each in job.workers if not each.dead)
            role = Role(self.generation, head == self.number, copy is not None, workers)
            job.spawn(self.say(self.replicas[shard], self.replicas[shard].take_role(role, to, 100 + head)), False)

    def hears(self, link: ServerLink) -> bool:
        """Not a link whose answers wait, nor a word of a view that is not here."""
        if link.comm.over:
            return True
        if not whole(link) or link.ahead > self.job.ahead:
            return False
        array = link.comm.into.held[0][1]
        return int.from_bytes(array.tobytes()[8:16], "little", signed=True) <= self.generation

    def read(self) -> Act:
        while True:
            yield lambda: not self.dead and any(map(self.hears, self.links))
            link = self.job.dice.choice([each for each in self.links if self.hears(each)])
            if link.comm.over:
                yield from self.ended(link)
                continue
            words, said = arrived(link)
            replica = self.replicas.get(words[0] >> 8 & 0xFFFFFF)
            if replica is None:
                continue
            if type(said).__name__ == "Hello":
                self.workers[said.worker] = link
            yield from self.say(replica, replica.take(said, link))

    def ended(self, link: ServerLink) -> Act:
        self.links.remove(link)
        for replica in list(self.replicas.values()):
            if replica.copy is link:
                yield from self.say(replica, replica.take(Unlinked(replica.shard.generation), None))
            for who in {link.uid, *(who for who, its in self.workers.items() if its is link)}:
                yield from self.say(replica, replica.take(Gone(who), None))
        self.workers = {who: its for who, its in self.workers.items() if its is not link}

    def say(self, replica: Replica, out: Any) -> Act:
        for to, said in out:
            link = replica.head if to == HEAD else self.workers.get(to)
            if link is None or link.comm.over:
                continue
            if not self.job.blocking:
                link.post(framed(replica.number, said))
                assert link.owes <= self.job.ahead + 3 * len(self.replicas) * (EACH + 64)
                continue
            yield from sent(link, framed(replica.number, said))


def sent(link: ServerLink, frame: Any) -> Act:
    """A blocking send."""
    while not link.comm.over:
        try:
            link.send(frame)
            return
        except Blocks:
            yield link.comm.out.fits


class Worker:
    """Pushes to each shard, ticks, and pulls from each; it reads only where it waits for an end, or for room."""

    def __init__(self, job: Job, number: int) -> None:
        self.job, self.uid = job, number
        self.boxes = [Outbox(number) for _ in range(job.shards)]
        self.links: dict[int, ServerLink] = {}
        self.heads: list[int] = []
        self.dead = False

    def install(self, view: list[tuple[int, int | None]]) -> None:
        self.heads = [head for head, _ in view]
        for shard, head in enumerate(self.heads):
            if head not in self.links or self.links[head].comm.over:
                self.links[head] = self.job.connect(self.uid, self.job.servers[head])
            for each in self.boxes[shard].view(self.job.generation):
                self.links[head].post(framed(shard, each))

    def open(self, shard: int) -> int:
        return len(self.boxes[shard].pushes) + len(self.boxes[shard].pulls)

    def may_read(self) -> bool:
        return any(whole(each) for each in self.links.values() if not each.comm.over)

    def read(self) -> None:
        link = self.job.dice.choice([each for each in self.links.values() if not each.comm.over and whole(each)])
        words, said = arrived(link)
        if words[5] and type(said).__name__ == "Ack":
            link.read = words[5]
        shard = words[0] >> 8 & 0xFFFFFF
        for each in self.boxes[shard].take(said)[1]:
            link.post(framed(shard, each))

    def until(self, true: Wait) -> Act:
        while not true():
            yield lambda: true() or self.may_read()
            if not true():
                self.read()

    def out(self, shard: int, frames: list[Any]) -> Act:
        for each in frames:
            link = self.links[self.heads[shard]]
            frame = framed(shard, each)
            if link.read and frame.words[0] & 0xFF == PUSH:
                frame.words[4], link.read = link.read, 0  # type: ignore[index]
            yield from sent(link, frame)

    def work(self) -> Act:
        job = self.job
        yield from self.until(lambda: all(each.ready for each in self.boxes))
        for clock in range(job.clocks):
            for _ in range(job.pushes):
                for shard, box in enumerate(self.boxes):
                    yield from self.until(lambda shard=shard: self.open(shard) < job.most)  # type: ignore[misc]
                    part = next(each for each in job.layout.parts[0] if each.shard == shard)
                    yield from self.out(shard, box.push(Change(0, part.number, None, np.ones(1, np.float32)))[1])
            for shard, box in enumerate(self.boxes):
                yield from self.until(lambda shard=shard: self.open(shard) < job.most)  # type: ignore[misc]
                yield from self.out(shard, box.tick(clock + 1)[1])
            for shard, box in enumerate(self.boxes):
                yield from self.until(lambda shard=shard: self.open(shard) < job.most)  # type: ignore[misc]
                part = next(each for each in job.layout.parts[0] if each.shard == shard)
                yield from self.out(shard, box.pull(What(0, part.number, None))[1])
            yield from self.until(lambda: not any(self.open(shard) for shard in range(job.shards)))
        for shard, box in enumerate(self.boxes):
            yield from self.out(shard, box.tick(None)[1])
        yield from self.until(lambda: not any(self.open(shard) for shard in range(job.shards)))
        self.dead = True
        for link in self.links.values():
            link.comm.over.append(True)


class Job:
    """`room`: messages that a way holds; `most`: of a worker's, on a shard, that are not answered; `blocking`: as it
    was, a server waits until its answer is on its way."""

    def __init__(
        self, servers: int = 1, shards: int = 1, workers: int = 2, room: int = SURE, most: int = 0, pushes: int = 3,
        clocks: int = 2, copies: int = 0, clock: str = "bsp", blocking: bool = False, seed: int = 0,
    ) -> None:  # fmt: skip
        self.dice = random.Random(seed)
        self.shards, self.room, self.blocking, self.ahead = shards, room, blocking, 4 * EACH
        self.most, self.pushes, self.clocks = most or max(1, OPEN // shards), pushes, clocks
        self.bound, self.generation, self.copies = staleness(clock), -1, copies
        self.layout = Places({"w": Range(shards, slice=4)}, shards)
        self.acts: list[list[Any]] = []
        self.servers = [Server(self, number) for number in range(servers)]
        self.workers = [Worker(self, 1 + number) for number in range(workers)]
        self.pairs: list[tuple[int, int, ServerLink, ServerLink]] = []
        self.view()
        for server in self.servers:
            self.spawn(server.read(), False)
        for worker in self.workers:
            self.spawn(worker.work(), True)

    def connect(self, uid: int, server: Server) -> ServerLink:
        mine, its = pair(self.room, self.blocking)
        mine.uid, its.uid = server.uid, uid
        server.links.append(its)
        self.pairs.append((uid, server.uid, mine, its))
        return mine

    def spawn(self, act: Act, ends: bool) -> None:
        """`ends`: the job is not over before."""
        with contextlib.suppress(StopIteration):
            self.acts.append([act, next(act), ends])

    def view(self) -> None:
        """The next one: shards stay with those who live."""
        self.generation += 1
        living = [each.number for each in self.servers if not each.dead]
        view: list[tuple[int, int | None]] = []
        for shard in range(self.shards):
            held = {n: its.shard for n in living if (its := self.servers[n].replicas.get(shard)) is not None}
            having = [n for n, its in held.items() if its.whole]
            head = next((n for n in having if held[n].head), None)
            head = head if head is not None else having[0] if having else living[shard % len(living)]
            copy = next((n for n in [*having, *living] if n != head), None) if self.copies else None
            view.append((head, copy))
        for each in self.dice.sample([*self.servers, *self.workers], len(self.servers) + len(self.workers)):
            if not each.dead:
                each.install(view)

    def kill(self, who: Any) -> None:
        who.dead = True
        for one, other, mine, _ in self.pairs:
            if who.uid in (one, other) and not mine.comm.over:
                mine.comm.over.append(True)
        if isinstance(who, Server) or self.dice.random() < 0.5:  # or its link's end is all that is heard of it
            self.view()

    def run(self, kills: dict[int, Any] | None = None) -> list[str]:
        """Until all workers are done.  Who waits for ever, if anybody does."""
        steps = 0
        while any(ends for _, _, ends in self.acts):
            if kills and (who := kills.pop(steps, None)) is not None and not who.dead:
                self.kill(who)
                self.acts = [each for each in self.acts if each[0].gi_frame is not None and not dead(each[0])]
            steps += 1
            ready = [each for each in self.acts if each[1]()]
            if not ready:
                return [each[0].__qualname__ for each in self.acts]
            each = self.dice.choice(ready)
            try:
                each[1] = next(each[0])
            except StopIteration:
                self.acts.remove(each)
        return []


def dead(act: Any) -> bool:
    """Is it a dead one's?"""
    return bool(act.gi_frame.f_locals["self"].dead) if "self" in act.gi_frame.f_locals else False


def test_the_old_answers_that_waited_are_found() -> None:
    """129 frames that nobody reads the answers of, 64 on each way and one in the reader's hand, and then one more, as
    three shards on one server gave it."""
    old = {"shards": 3, "most": SURE, "clocks": 1, "clock": "async", "blocking": True, "workers": 1}
    for pushes, waits in ((41, []), (42, ["Server.read", "Worker.work"])):
        assert 3 * (pushes + 2) - 129 in (0, 3)  # with a clock and a pull for each shard
        assert Job(pushes=pushes, **old).run() == waits  # type: ignore[arg-type]
        assert not Job(pushes=pushes, **{**old, "blocking": False}).run()  # type: ignore[arg-type]


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_no_waits_form_a_circle(servers: int) -> None:
    """However little a way holds, in any order, while workers and servers die."""
    done = 0
    for seed in range(40):
        dice = random.Random(seed)
        job = Job(
            servers, shards=dice.randint(1, 3), workers=dice.randint(1, 3), room=SURE, pushes=dice.choice([1, 5, 30]),
            clocks=dice.randint(1, 2), copies=int(servers > 1 and dice.random() < 0.7), seed=seed,
            clock=dice.choice(["bsp", "ssp:1", "async"]))  # fmt: skip
        kills: dict[int, Any] = {}
        for _ in range(dice.randint(0, 2)):
            kills[dice.randrange(300)] = dice.choice(job.workers)
        if servers > 1:
            kills[dice.randrange(300)] = job.servers[dice.randrange(1, servers)]
        waits = job.run(kills)
        assert not waits, (seed, waits)
        done += job.generation
    assert servers == 1 or done >= 20, "servers were lost"
