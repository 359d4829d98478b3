"""Jobs of 3 ranks, in every order of their words, deaths, goodbyes and time limits: who is told what.

A job is the real coordinator, real members, and a queue each way between them.  From each state all that may happen
next is tried: a rank does what comes next in its program, a message arrives, a time is over.  Each state is visited
once.
"""

from __future__ import annotations

import io
import pickle
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from hocket.control.protocol import messages as say
from hocket.control.protocol.coordinator import Coordinator
from hocket.control.protocol.faults import Later, Timer
from hocket.control.protocol.member import Member

SIZE = 3
RANKS = list(range(SIZE))
Move = tuple[str, int]


class Owner:
    """A rank's ears; asked, it tells what it is doing."""

    def __init__(self, rank: int) -> None:
        self.rank, self.heard = rank, list[Any]()

    def stop(self, fault: say.Fault) -> say.Account:
        self.heard.append(say.Stop(fault))
        return {"state": "idle", "seq": self.rank}

    def account(self, comm: str) -> say.Account:
        return {"state": "idle", "seq": self.rank}

    def hear(self, message: Any) -> None:
        self.heard.append(message)


def fault(kind: Any, rank: int) -> say.Fault:
    return say.Fault(kind, "c", 5, RANKS, kind, {"state": "in call", "seq": rank}, left=[0] if kind == "left" else [])


class Job:
    """`programs`: by rank, words of `ACTIONS`."""

    def __init__(self, programs: Sequence[tuple[str, ...]]) -> None:
        self.programs = [list(program) for program in programs]
        self.exchanging = {rank for rank in RANKS if "exchanges" in programs[rank]}
        self.late: set[int] = set()
        """Whose time to come again was over."""
        self.cut = {rank for rank in RANKS if "is cut off" in programs[rank]}
        self.coordinator: Coordinator | None = Coordinator(SIZE, "job", say.Welcome(key="00"))
        self.members: list[Member | None] = [Member(rank) for rank in RANKS]
        self.owners = [Owner(rank) for rank in RANKS]
        self.up, self.down = [deque[Any]() for _ in RANKS], [deque[Any]() for _ in RANKS]
        self.timers: list[Timer] = []
        self.left: set[int] = set()
        self.taken: list[tuple[int, Any]] = []
        """Faults that the coordinator has taken."""
        self.linked: set[int] = set()
        """Ranks whose connection the coordinator has taken, and not closed."""
        for rank, member in enumerate(self.members):
            assert member is not None
            member.owner = self.owners[rank]
        if not any("joins" in program for program in programs):
            for rank in RANKS:
                self.take(rank, say.Join(rank, SIZE))
            for rank in RANKS:
                self.hear(rank)  # the welcome

    # --- what may happen

    def moves(self) -> Iterator[Move]:
        for rank in RANKS:
            if self.members[rank] is not None and self.programs[rank]:
                yield "acts", rank
                if self.down[rank]:
                    yield "hears", rank
            if self.up[rank]:
                yield "arrives", rank
        yield from (("over", i) for i in range(len(self.timers)))

    def do(self, what: str, which: int) -> None:
        if what == "acts":
            self.act(which, self.programs[which].pop(0))
        elif what == "hears":
            self.hear(which)
        elif what == "arrives":
            self.take(which, self.up[which].popleft())
        else:
            timer = self.timers.pop(which)
            if timer.what == "again":
                self.late.add(int(timer.of))
            self.take(-1, timer)
        self.settle()

    def settle(self) -> None:
        """A rank that does nothing more by itself hears at once: its answers may still arrive at any time."""
        for rank in RANKS:
            while self.down[rank] and not self.programs[rank]:
                self.hear(rank)

    def act(self, rank: int, word: str) -> None:
        if word == "dies":
            self.die(rank)
        elif word == "leaves":
            self.left.add(rank)
            self.members[rank].closed = True  # type: ignore[union-attr]
            self.say(rank, say.Goodbye({"c": rank}))
        elif word == "joins":
            self.say(rank, say.Join(rank, SIZE))
        elif word == "is cut off":
            self.say(rank, say.Ended("cut"))
            self.down[rank].clear()
        elif word == "exchanges":
            self.say(rank, say.Exchange(0, rank))
        elif word.startswith("stuck"):
            self.say(rank, say.Stuck("c", 5, RANKS, word, {"state": "in call", "seq": rank}))
        else:
            self.say(rank, fault(word, rank))

    def die(self, rank: int) -> None:
        """Its words arrive, then its end.  With rank 0 the coordinator dies."""
        self.members[rank] = None
        self.down[rank].clear()
        self.programs[rank].clear()
        if rank:
            self.say(rank, say.Ended("killed"))
            return
        self.coordinator = None
        self.timers.clear()
        for other in RANKS:
            self.up[other].clear()
            if other in self.linked - {0}:
                self.down[other].append(say.Ended("killed"))

    def say(self, rank: int, message: Any) -> None:
        if self.coordinator is not None:
            self.up[rank].append(message)

    def hear(self, rank: int) -> None:
        member = self.members[rank]
        message = self.down[rank].popleft()
        if member is not None:
            for answer in member.take(message):
                self.say(rank, answer)

    def take(self, by: int, message: Any) -> None:
        if self.coordinator is None:
            return
        gone = self.coordinator.members.gone
        if isinstance(message, say.Join) and gone:  # as Links does
            self.down[by].append(gone.verdict(min(gone.lost)))
            return
        if isinstance(message, say.Join):
            self.linked.add(by)
        if isinstance(message, say.Ended):
            if by not in self.linked:
                return  # it had not joined, so nobody knew it
            self.linked.discard(by)
        if isinstance(message, (say.Fault, say.Stuck)):
            self.taken.append((by, message))
        for each in self.coordinator.take(by, message):
            if isinstance(each, Later):
                self.timers.append(each.timer)
                continue
            if self.members[each.rank] is not None:
                self.down[each.rank].append(each.message)
            if isinstance(each.message, say.Bye):
                self.linked.discard(each.rank)
                self.up[each.rank].clear()  # nobody reads there any more

    # --- what must be true when nothing more can happen

    def judge(self, over: bool) -> None:
        """`over`: no time limit is left, either."""
        alive = [rank for rank in RANKS if self.members[rank] is not None and rank not in self.left]
        dead = {rank for rank in RANKS if self.members[rank] is None}
        if self.coordinator is not None and not self.coordinator.members.formed:
            if over:
                self.judge_forming(alive, dead)
            return
        for rank in alive:
            self.judge_losses(rank, dead)
        if self.coordinator is not None:
            members = self.coordinator.members
            assert set(alive) - self.cut <= members.here <= set(alive) and members.empty == (not members.here - {0})
            self.judge_exchange(alive)
            self.judge_faults(alive, dead)

    def judge_forming(self, alive: list[int], dead: set[int]) -> None:
        assert self.coordinator is not None
        lost, blamed = set(self.coordinator.members.gone.lost), set(self.coordinator.members.to_blame())
        joined = self.coordinator.members.here
        for rank in alive:
            member = self.members[rank]
            assert member is not None and not member.heard
            assert (set(member.gone.lost) == lost) if rank in joined else set(member.gone.lost) <= lost
        assert lost <= self.late & (dead | self.cut) and not lost & joined, "who comes again in time is not lost"
        assert blamed == set(RANKS) - joined - self.left or blamed == set(RANKS) - joined <= self.left

    def judge_losses(self, rank: int, dead: set[int]) -> None:
        member = self.members[rank]
        assert member is not None
        if self.coordinator is None:
            assert set(member.gone.lost) <= dead and (0 in member.gone.lost or 0 in member.gone.left)
            assert not set(member.gone.lost) & set(member.gone.left) and member.ended
        else:
            assert dead - self.left <= set(member.gone.lost) <= (dead | self.cut) - self.left
            assert set(member.gone.left) == self.left
        lost = [each.rank for each in self.owners[rank].heard if isinstance(each, say.Lost)]
        assert sorted(lost) == sorted(set(lost)) == sorted(member.gone.lost), "each loss is told once"

    def judge_exchange(self, alive: list[int]) -> None:
        for rank in alive:
            member = self.members[rank]
            assert member is not None
            values = member.heard.get((say.Values, 0))
            assert values is None or values.values == RANKS
            if rank in self.exchanging and len(self.exchanging) == SIZE:
                assert values or member.gone, "nobody waits for ever"

    def judge_faults(self, alive: list[int], dead: set[int]) -> None:
        reported = [(by, each) for by, each in self.taken if isinstance(each, say.Fault) and each.kind != "left"]
        stuck = {each.fingerprint for _, each in self.taken if isinstance(each, say.Stuck)}
        cases = set()
        for rank in alive:
            heard = self.owners[rank].heard
            verdicts = [each for each in heard if isinstance(each, say.Verdict)]
            whole = [each for each in verdicts if each.accounts]
            stops = [each for each in heard if isinstance(each, say.Stop)]
            assert len(whole) == len(stops) == (1 if reported or len(stuck) > 1 else 0), "one stop, one verdict"
            for stop, verdict in zip(stops, whole, strict=True):
                assert heard.index(stop) < heard.index(verdict) and stop.fault == verdict.fault
                cases.add(repr(verdict))
                self.judge_accounts(verdict, dead)
            told = {(each.fault.by, each.fault.kind) for each in verdicts if not each.accounts}
            first = {(each.fault.by, each.fault.kind) for each in whole}
            assert told | first >= {(by, each.kind) for by, each in self.taken if getattr(each, "kind", "") == "exit"}
            assert told >= {(by, each.kind) for by, each in self.taken if getattr(each, "kind", "") == "left"}
            assert {kind for _, kind in told} <= {"exit", "left"}
        assert len(cases) <= 1, "the same verdict for all"

    def judge_accounts(self, verdict: say.Verdict, dead: set[int]) -> None:
        assert sorted(verdict.accounts) == RANKS
        for rank, account in verdict.accounts.items():
            if account["state"] == "lost":
                assert rank in dead
            elif account["state"] == "left":
                assert rank in self.left
            elif account["state"] != "no answer":
                assert account["seq"] == rank
        assert verdict.fault.by in RANKS and verdict.accounts[verdict.fault.by]["state"] == "in call"


def key(job: Job) -> bytes:
    """Equal for equal states, whatever they share."""
    written = io.BytesIO()
    pickler = pickle.Pickler(written)
    pickler.fast = True
    pickler.dump(job)
    return written.getvalue()


def explore(*programs: tuple[str, ...]) -> int:
    """Visit every state; returns how many."""
    ahead, seen, ends = [pickle.dumps(Job(programs))], set[bytes](), 0
    while ahead:
        state = ahead.pop()
        job: Job = pickle.loads(state)
        moves = list(job.moves())
        if all(what == "over" for what, _ in moves):
            job.judge(over=not moves)  # what is true then does not wait for a time limit
            ends += 1
        for number, move in enumerate(moves):
            after = job if number + 1 == len(moves) else pickle.loads(state)
            after.do(*move)
            if (found := key(after)) not in seen:
                seen.add(found)
                ahead.append(pickle.dumps(after))
    assert ends
    return len(seen)


ACTIONS = ["dies", "leaves", "exchanges", "timeout", "exit", "left", "stuck a", "stuck b"]


@pytest.mark.parametrize("one", ACTIONS[:-1])
def test_two_ranks(one: str) -> None:
    """Rank 0, which holds the coordinator, and another; or two others.  "stuck b" is "stuck a", but beside it."""
    others = ACTIONS if one == "stuck a" else ACTIONS[:-1]
    states = sum(explore((one,), (other,), ()) for other in others)
    states += sum(explore((), (one,), (other,)) for other in others[others.index(one) :])
    assert states > 200


@pytest.mark.parametrize(
    "programs",
    [
        pytest.param((("exchanges",), ("exchanges",), ("exchanges",)), id="all exchange"),
        pytest.param((("exchanges",), ("exchanges", "dies"), ("exchanges",)), id="one dies in an exchange"),
        pytest.param(
            (("timeout",), ("dies",), ("leaves",)), id="a time is over, one dies and one leaves", marks=pytest.mark.more
        ),
        pytest.param((("leaves",), ("stuck a", "dies"), ("stuck b",)), id="two differ, one dies, rank 0 leaves"),
        pytest.param((("leaves", "dies"), (), ("timeout",)), id="rank 0 leaves and ends"),
        pytest.param((("joins",), ("joins", "dies"), ("joins",)), id="one dies while they meet"),
        pytest.param((("joins",), ("joins", "leaves"), ("joins", "dies")), id="one gives up, one dies"),
        pytest.param((("joins",), ("joins", "is cut off", "joins"), ("joins",)), id="one comes again"),
        pytest.param((("joins",), ("joins", "leaves"), ()), id="one gives up, one never comes"),
    ],
)
def test_three_ranks(programs: tuple[tuple[str, ...], ...]) -> None:
    assert explore(*programs) > 15


@pytest.mark.more
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("zero", ACTIONS)
@pytest.mark.parametrize("one", ACTIONS)
def test_all_three_do_something(zero: str, one: str) -> None:
    """Ranks 1 and 2 are alike.  Minutes."""
    for other in ACTIONS[ACTIONS.index(one) :]:
        explore((zero,), (one,), (other,))
