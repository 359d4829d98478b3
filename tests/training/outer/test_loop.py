"""The outer loop's machine, simulated on the crew's; and each law breaks without its line."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from hocket.training.crew import machine
from hocket.training.outer import loop
from support import outer_simulator
from support.crew_simulator import Broken

SOURCE = Path(loop.__file__).read_text()


def run(seed: int) -> None:
    try:
        outer_simulator.simulate(machine, loop, seed)
    except Broken as why:
        raise AssertionError(f"seed {seed}: {why}") from None


def test_no_schedule_breaks_a_law() -> None:
    for seed in {*range(1500), *(seed for *_, seed in LINES.values())}:
        run(seed)


@pytest.mark.more
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(20))
def test_a_hundred_thousand_schedules(part: int) -> None:
    for seed in range(1_000_000 + part * 5_000, 1_000_000 + (part + 1) * 5_000):
        run(seed)


LINES: dict[str, tuple[str, str, str, int]] = {
    "who finishes ends the round": ("return Land() if self._ends or", "return Land() if", "Finish", 0),
    "and averages once more": ("self.now < self._next and not self._ends", "self.now < self._next", "Finish", 1),
    "until nobody has trained": ("= self._ends and any(trained", "= self._ends or any(trained", "Ending", 0),
    "who has": ("and any(trained for _, trained in event.words)", "and False", "Finish", 0),
    "the others finish, too": ("self._ends = self._followed = True", "pass", "", 14),
    "a round comes to its boundary": ("if not self._met:", "if False:", "Ending", 0),
    "each time": ("self._met = False\n        return Come()", "return Come()", "Ending", 14),
}  # fmt: skip
"""A line, another in its place, the law that breaks then ("": several), and a seed that shows it, tried first."""


@pytest.mark.parametrize("what", LINES)
def test_a_law_breaks_without_its_line(what: str) -> None:
    line, instead, law, seed = LINES[what]
    assert SOURCE.count(line) == 1
    code = types.ModuleType("hocket_outer_without_a_line")
    sys.modules[code.__name__] = code
    exec(compile(SOURCE.replace(line, instead), code.__name__, "exec"), code.__dict__)
    for each in (seed, *range(3000)):
        try:
            outer_simulator.simulate(machine, code, each)
        except Broken as why:
            assert str(why).startswith(law), f"another law broke: {why}"
            return
    raise AssertionError(f"without {what!r} no law breaks")
