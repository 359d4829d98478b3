"""The crew's machine, simulated: each order of two members and one fault, and seeds; and each law breaks without its
line."""

from __future__ import annotations

import pytest

from hocket.errors import PeerLostError
from hocket.training.crew import machine
from support import crew_simulator, lines


def run(seed: int) -> None:
    crew_simulator.simulate(machine, seed)


@pytest.mark.timeout(300)
def test_no_order_of_two_members_and_one_fault_breaks_a_law() -> None:
    assert crew_simulator.walk(crew_simulator.World(machine, 2, 1)) > 10_000


@pytest.mark.timeout(300)
def test_no_schedule_breaks_a_law() -> None:
    """Seeds that break a law where a line is missing are among them, and the one of a million that waited longest."""
    lines.must_hold(run, {*range(4000), *range(5000, 6000), 1_702_519, *(seed for *_, seed in LINES.values())})


@pytest.mark.more
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(100))
def test_a_million_schedules(part: int) -> None:
    lines.must_hold(run, range(1_000_000 + part * 10_000, 1_000_000 + (part + 1) * 10_000))


def test_the_last_whole_state_is_not_given_up_before_another_has_come() -> None:
    """The most advanced dies while its state moves to all others, who have theirs still; newcomers have none."""
    met = machine.Met(1, 0, {0: machine.Attendance(0, 4), 1: machine.Attendance(0, 5)}, (0, 1, None))
    for new in (False, True):
        one = machine.MemberMachine(0, 2, 0, new)
        one.take(machine.Breaks(4, ValueError("lost")))
        (fit,) = one.take(met._replace(infos={**met.infos, 0: machine.Attendance(0, -1 if new else 4)}))
        (move,) = one.take(machine.Fitted({rank: {"arrays": {}} for rank in fit.ranks}))
        assert (move.donor, move.keeps) == (1, not new)
        one.take(machine.Fails(ValueError("the donor is dead")))
        says = machine.Attendance(0, -1 if new else 4)
        ends = one.take(machine.Met(2, 0, {0: says}, (0, None)))
        error = ends[-1].error
        assert ("nobody is left who holds the state" in str(error)) is new and isinstance(error, PeerLostError) is new


LINES: dict[str, lines.Row] = {
    "who is gone is met without": ("if gone := sorted", "if False and sorted", "Ending", 103),
    "more than half": ("if 2 * len(ranks) > size), ())", "if ranks), ())", "Equal bits", 12),
    "present is of one position": ("each.position if each.moment == PRESENT else NOWHERE", "NOWHERE", "Matching", 5),
    "a boundary is of all": ("each.position if each.moment == PRESENT else NOWHERE", "each.position", "", 0),
    "newcomers are let in": ("any(each.waiting for each in infos.values())", "False", "Ending", 27),
    "also where one is silent": ("{*ranks, *event.overdue}", "ranks", "Ending", 219),
    "who is alone at present begins again": ("(not ranks or max(", "(ranks and max(", "Ending", 5),
    "who was late is not waited for": ("() if patient else self.left_out", "()", "Waiting", 0),
    "but in a new generation": ("self.left_out, self._few, self", "_, self._few, self", "Waiting", 27),
    "the silent are left out": ("*self._meet(silent)]", "*self._meet()]", "Ending", 3),
    "those before stay out": ("{*self._without} - (", "set() - (", "", 24),
    "half and half ends": ("if self._few is not None:", "if False:", "Ending", 3),
    "all are met once more": ("if self._few is not None:", "if True:", "Nobody healthy", 108361),
    "a silent member ends nobody": ("silent == {*self._without} or", "True or", "", 9),
    "the most advanced gives": ("self._top = max(", "self._top = min(", "", 0),
    "one gives": ("min(most)", "self.rank if self.rank in most else min(most)", "", 53),
    "only who is behind takes": ("if not behind or self.rank not in here:", "if not behind:", "", 0),
    "half a state is none": ("self.whole &= self._keeps or", "self.whole |=", "Equal bits", 5),
    "other settings are refused": ("if made != wanted}", "if False}", "Refused", 0),
    "who is refused leaves": ("return [Leave(), *self._end", "return [*self._end", "", 0),
    "what has come is whole": ("        self.whole = True\n        self._asked", "        self._asked", "", 0),
    "and has its position": ("self._asked._replace(position=self._top)", "self._asked", "Moving", 0),
    "a newcomer has none": ("self._asked.position if self.whole else NOWHERE", "self._asked.position", "Refused", 0),
    "a boundary goes on after a meeting": ("if self._asked.moment == BOUNDARY:", "if False:", "Again", 0),
    "a round does not": ("if self._asked.moment == BOUNDARY:", "if True:", "Again", 0),
    "who is not here comes again": ("        return self._come()\n\n    # --- who goes on",
                                    "        return self._end(Return(ranks))\n\n    # --- who goes on", "", 0),
    "a meeting that fails is no loss": ("if self.state != MEETS:", "if True:", "Ending", 0),
}  # fmt: skip


@pytest.mark.parametrize("what", LINES)
def test_a_law_breaks_without_its_line(what: str) -> None:
    lines.must_break(machine, LINES[what], crew_simulator.simulate)
