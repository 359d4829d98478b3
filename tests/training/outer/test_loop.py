"""The outer loop's machine, simulated on the crew's; and each law breaks without its line."""

from __future__ import annotations

from typing import Any

import pytest

from hocket.training.crew import machine
from hocket.training.outer import loop
from support import lines, outer_simulator


def simulate(code: Any, seed: int) -> None:
    outer_simulator.simulate(machine, code, seed)


def run(seed: int) -> None:
    simulate(loop, seed)


def test_no_schedule_breaks_a_law() -> None:
    lines.must_hold(run, {*range(1500), *(seed for *_, seed in LINES.values())})


@pytest.mark.more
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(20))
def test_a_hundred_thousand_schedules(part: int) -> None:
    lines.must_hold(run, range(1_000_000 + part * 5_000, 1_000_000 + (part + 1) * 5_000))


LINES: dict[str, lines.Row] = {
    "who finishes ends the round": ("if not self._ends and self.now < flight", "if self.now < flight", "Finish", 0),
    "and averages once more": ("self.now < self._next and not self._ends", "self.now < self._next", "Finish", 1),
    "until nobody has trained": ("= self._ends and any(trained", "= self._ends or any(trained", "Ending", 0),
    "who has": ("and any(trained for _, trained in event.words)", "and False", "Finish", 0),
    "the others finish, too": ("self._ends = self._followed = True", "pass", "", 14),
    "a round comes to its boundary": ("if not self._met:", "if False:", "Ending", 0),
    "each time": ("self._met = False\n        return Come()", "return Come()", "Ending", 14),
}  # fmt: skip


@pytest.mark.parametrize("what", LINES)
def test_a_law_breaks_without_its_line(what: str) -> None:
    lines.must_break(loop, LINES[what], simulate)
