"""The machine of servers' and clients' views, simulated; and each law breaks without its line."""

from __future__ import annotations

import pytest

from hocket.training.server import view_machine
from support import crew_simulator, lines, view_simulator


@pytest.mark.timeout(300)
def test_no_order_of_two_members_and_two_faults_breaks_a_law() -> None:
    assert crew_simulator.walk(view_simulator.World(view_machine, 2, 2)) > 10_000


@pytest.mark.timeout(300)
def test_no_schedule_breaks_a_law() -> None:
    lines.must_hold(run, {*range(5000), *(seed for *_, seed in LINES.values())})


@pytest.mark.more
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(100))
def test_a_million_schedules(part: int) -> None:
    lines.must_hold(run, range(1_000_000 + part * 10_000, 1_000_000 + (part + 1) * 10_000))


def run(seed: int) -> None:
    view_simulator.simulate(view_machine, seed)


LINES: dict[str, lines.Row] = {
    "a loss is met": ("if not self._elastic or not goes_on:", "if True:", "Nobody healthy", 8),
    "who joins goes on": ("goes_on = self.has_view or not self._new or", "goes_on = self.has_view or", "", 1678),
    "who does not serve is left out": ("self._without = {*event.missing}", "pass", "", 20),
    "a meeting goes on without the silent": ("elif not late or event.over:", "elif True:", "Nobody healthy", 30),
    "and with who has come since": ("self._without - came |", "self._without |", "", 1353),
    "who has a view waits for the limit": ("self._first and not self.has_view)]", "True)]", "Limit", 20),
    "who says something else is told": ("if event.rank in wrong:", "if False:", "", 4),
    "ranks are those of a generation": ("self._new, self._without, self", "self._new, _, self", "", 63),
    "a newcomer has had no view": ("each._replace(viewed=False, has={})", "each._replace(viewed=True)", "", 3),
}  # fmt: skip


@pytest.mark.parametrize("what", LINES)
def test_a_law_breaks_without_its_line(what: str) -> None:
    lines.must_break(view_machine, LINES[what], view_simulator.simulate)
