"""The agreement on a next generation, simulated under seeds; and each law breaks when its line is missing."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from hocket.control.protocol import decree, words
from hocket.control.protocol.decree import Decree
from hocket.control.protocol.words import (
    Away,
    Back,
    Call,
    Granted,
    Late,
    Made,
    Newcomer,
    Prepare,
    Promise,
    Proven,
    Refuse,
    SendTo,
)
from support import decree_simulator, lines


def carried(decrees: dict[int, Decree], *events: tuple[int, Any]) -> None:
    """These events, each with all that follows from it."""
    for rank, event in events:
        ahead = deque(decrees[rank].take(rank, event))
        by = deque([rank] * len(ahead))
        while ahead:
            each, sender = ahead.popleft(), by.popleft()
            if isinstance(each, words.SendTo) and each.rank in decrees:
                more = decrees[each.rank].take(sender, each.message, each.generation)
                ahead += more
                by += [each.rank] * len(more)


def of(ranks: int, *here: int) -> dict[int, Decree]:
    return {rank: Decree(rank, range(ranks), 1) for rank in here or range(ranks)}


def test_all_go_on_with_what_each_said() -> None:
    decrees = of(3)
    carried(decrees, *((rank, Call(f"step {rank}")) for rank in (2, 0, 1)))
    assert {each.made for each in decrees.values()} == {Made((0, 1, 2), (), ("step 0", "step 1", "step 2"), ())}


def test_who_is_connected_and_has_not_called_is_waited_for_and_named() -> None:
    decrees = of(3)
    carried(decrees, (0, Call()), (2, Call()))
    assert decrees[0].made is None and decrees[0].missing() == [1]
    assert decrees[2].missing() == [0], "it knows no more yet"
    carried(decrees, (2, Late()))
    assert decrees[2].missing() == [1]
    carried(decrees, (1, Call()))
    assert decrees[1].made is not None


def test_two_ranks_of_one_host_can_lose_one() -> None:
    decrees = of(2, 1)
    carried(decrees, (1, Call("last")), (1, Away(0)))
    assert decrees[1].made is None
    carried(decrees, (1, Proven(0)))
    assert decrees[1].made == Made((1,), (), ("last",), ((0, "dead"),))


def test_half_needs_the_grant() -> None:
    for granted, goes_on in (((0, 1), True), ((2, 3), False)):
        decrees = of(4, 0, 1)
        away = [(rank, Away(other)) for rank in (0, 1) for other in (2, 3)]
        carried(decrees, (0, Call()), (1, Call()), *away, (0, Granted(granted)))
        assert (decrees[0].made is not None) is goes_on


def test_least() -> None:
    decrees = of(3, 0, 1)
    carried(decrees, (0, Call(least=3)), (1, Call()), (0, Proven(2)), (1, Proven(2)))
    assert decrees[0].made is None


def test_who_is_excluded_does_not_lead_and_waits_for_nobody() -> None:
    decrees = of(4)
    carried(decrees, (0, Call("zero")), (3, Call("three")), (2, Call("two", without=(0,))), (1, Call("one")))
    wanted = Made((1, 2, 3), (), ("one", "two", "three"), ((0, "excluded"),))
    assert {each.made for each in decrees.values()} == {wanted}


def test_two_that_exclude_each_other_go_on_when_they_exclude_nobody() -> None:
    """Neither leads, and those that are left are too few; then all call again."""
    decrees = of(4)
    carried(decrees, (0, Call(0, without=(1, 2))), (1, Call(1, without=(0, 3))), (2, Call(2)), (3, Call(3)))
    assert all(each.made is None for each in decrees.values())
    carried(decrees, *((rank, Call(rank)) for rank in range(4)))
    assert {each.made for each in decrees.values()} == {Made((0, 1, 2, 3), (), (0, 1, 2, 3), ())}


def test_a_newcomer_comes_behind() -> None:
    decrees = of(2)
    carried(decrees, (0, Newcomer("host:1")), (0, Call()), (1, Call()))
    assert decrees[1].made == Made((0, 1), ("host:1",), (None, None), ())


def test_who_is_late_is_not_waited_for_and_is_a_member_if_it_has_called() -> None:
    """Also the one that would lead."""
    for slow in (0, 2):
        for called in (False, True):
            decrees, others = of(4), [rank for rank in range(4) if rank != slow]
            carried(decrees, *((rank, Call(rank)) for rank in others))
            assert all(each.made is None for each in decrees.values())
            again = [(rank, Call(rank, late=(slow,))) for rank in others]
            carried(decrees, *([(slow, Call(slow))] if called else again))
            members = tuple(range(4)) if called else tuple(others)
            lost = () if called else ((slow, "late"),)
            assert {each.made for each in decrees.values()} == {Made(members, (), members, lost)}


def test_no_ballot_is_used_twice() -> None:
    """Another value may have been accepted with it."""
    one = Decree(1, range(3), 1)

    def ballots(by: int, message: Any) -> list[Any]:
        said = one.take(by, message, None if by == 1 else 1)
        return [each.message.ballot for each in said if isinstance(each, SendTo) and isinstance(each.message, Prepare)]

    one.take(1, Call())
    (first, *_) = ballots(1, Away(0))
    one.take(1, Prepare(first), 1)
    for rank in (1, 2):
        one.take(rank, Promise(first, None, (), 1, words.NONE, None), 1)
    assert set(ballots(1, Back(0))) == {first} and not ballots(2, Refuse((0, 2)))
    (second, *_) = ballots(1, Away(0))
    assert second > max(first, (0, 2))


def test_no_schedule_breaks_a_law() -> None:
    """Seeds that break a law where a line is missing are among them."""
    lines.must_hold(run, {*range(2000), *(seed for *_, seed in LINES.values())})


def test_who_stops_leading_says_so_to_the_leader() -> None:
    """Its own ballot had overtaken the leader's, who waited for ever; one schedule in a million."""
    lines.must_hold(run, [1_441_122])


@pytest.mark.more
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(100))
def test_a_million_schedules(part: int) -> None:
    lines.must_hold(run, range(1_000_000 + part * 10_000, 1_000_000 + (part + 1) * 10_000))


def run(seed: int) -> None:
    decree_simulator.simulate(decree, seed)


LINES: dict[str, lines.Row] = {
    "the component": ("return not silent or 2 * len(part) > n or", "return True or", "Agreement", 6),
    "more than half of those not proven dead": (
        "2 * len(part) > n or", "len(part) > len(silent) or", "Agreement", 16009),
    "a silent newcomer may have gone on with others": (
        "silent = set(self.members) - here", "silent = of - here", "Agreement", 1_050_787),
    "newcomers that have not come are not counted": (
        "[self.old] if 0 in met", "[{*self.members}] if 0 in met", "Ending", 0),
    "they are once all know that they came": ("else [self.old, set(self.members)]", "else [self.old]", "Agreement", 0),
    "those that go on are more than half": (
        "if not self._may_go_on(members):", "if False:", "Agreement", 8),
    "who promises late may accept": (
        "yield self._send(by, Accept(lead.ballot, lead.value))", "yield from ()", "Ending", 3287),
    "the grant": ("{*(self.granted or ())} & of == part", "True", "Agreement", 6),
    "what was accepted counts": (
        "lead.value = self._chosen(lead) or self._new", "lead.value = self._new", "Agreement", 176),
    "the highest ballot's": ("max(lead.promises.values()", "min(lead.promises.values()", "Agreement", 665),
    "a promise to accept nothing lower": (
        "elif accept.ballot < self._promised:", "elif False:", "Agreement", 465),
    "a promise to promise nothing lower": (
        "elif prepare.ballot < self._promised:", "elif False:", ("Agreement", "Ending"), 4300),
    "all that are connected are waited for": (
        "if r not in others]", "if r in lead.promises]", "Validity", 0),
    "who came back is asked": (
        "yield self._send(back.rank, Prepare(self._lead.ballot))", "yield from ()", "Ending", 3779),
    "who leads tells what was decided": (
        "if leader != before and self.made is not None:", "if False:", "Ending", 1176),
    "who was refused begins again": ("self._lead, self._round = None, refuse", "self._round = refuse", "Ending", 7),
    "a loss is looked at": ("else self.away).add(gone.rank)\n        yield from self._go_on()",
                            "else self.away).add(gone.rank)\n        yield from ()", "Ending", 64),
    "the grant is looked at": ("self.granted = granted.members\n        yield from self._go_on()",
                               "self.granted = granted.members\n        yield from ()", "Ending", 66),
    "those dead are proven": ('"dead" if r in self.dead', '"dead" if r in self.dead | self.away', "Naming", 6),
    "the order": ("Made(tuple(members)", "Made(tuple(members[::-1])", "Order", 0),
    "fencing": ("if generation not in (None, self.generation):", "if False:", ("Agreement", "Fencing"), 2),
}  # fmt: skip


@pytest.mark.parametrize("what", LINES)
def test_a_law_breaks_without_its_line(what: str) -> None:
    lines.must_break(decree, LINES[what], decree_simulator.simulate)


def test_a_rank_does_not_wait_for_itself_though_the_leader_excludes_it() -> None:
    one = Decree(1, range(3), 1)
    list(one.take(1, Call()))
    list(one.take(0, words.Excludes((1, 2)), 1))
    assert one.leader == 0 and one.missing() == [2]


def test_who_has_called_and_is_not_asked_yet_is_not_missing() -> None:
    """A rank that it excludes was heard first."""
    one = Decree(1, range(3), 1)
    one.take(1, Call())
    one.take(2, words.Excludes((0,)), 1)
    assert one.leader == 1 and 0 in one.missing() and 2 not in one.missing()
