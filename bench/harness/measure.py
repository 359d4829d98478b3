"""The measurement: for each size, every library in turns.

All are timed in blocks, one library after the other, several times round (A B A B), so that a machine that slows down
or speeds up does so for all.  A block is as many calls as fit its share of the time; it is as slow as its slowest
rank; the median block counts.  Where hocket is loaded in a peer's processes too, its block there comes right before the
peer's: their ratio does not depend on where either library's processes lie.  `line` tells how far apart the cores are
then: a hypervisor moves them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from hocket.bench.harness.table import Row
from hocket.bench.harness.team import Team
from hocket.collectives.measuring.cases import Case
from hocket.errors import Error

MOST = 20000  # calls in a block


@dataclass(frozen=True)
class Effort:
    """The extent of a measurement: `seconds` for one library and size, in `blocks`; or exactly `iterations` calls a
    block."""

    seconds: float = 0.5
    blocks: int = 5
    iterations: int | None = None
    check: bool = False
    warmup: int = 50
    """Calls before the clock counts, where they are short beside a block."""
    touch: bool = False
    """Each rank writes its input before each call, and reads its result after it, while the clock stands."""


def _tell(text: str) -> None:
    print(f"# {text}", file=sys.stderr, flush=True)


def measure(
    cases: Sequence[Case], ours: Team, peers: Sequence[Team], effort: Effort, tell: Callable[[str], None] = _tell,
    line: Callable[[], float] | None = None,
) -> Iterator[Row]:  # fmt: skip
    """One row after the other.  A peer that fails is reported once and left out; if ours fails, that is raised.

    `line`: seconds that a cache line takes to the other core and back, now.
    """
    lenient = _Lenient(tell)
    for case in cases:
        able = [team for team in peers if lenient.able(team, _prepare_both, case)]
        chosen = _prepare(ours, case)
        row = Row(case, 0.0, algorithm=chosen.get("algorithm", ""), transport=chosen.get("transport", ""))
        able = _time(row, ours, able, effort, lenient, line)
        row.seconds = median(row.blocks[ours.name])
        row.peers = {team.name: median(row.blocks[team.name]) for team in able}
        if effort.check:
            row.wrong = _wrong(ours)
            for team in able:
                lenient.able(team, _suspect, tell)
        yield row


class _Lenient:
    """Reports the first failure of each peer, and lets the rest go on."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell = tell
        self.told: set[str] = set()

    def able(self, team: Team, act: Callable[..., object], *args: Any) -> bool:
        """act(team, *args), and whether that went well."""
        try:
            act(team, *args)
        except Error as why:
            if team.name not in self.told:
                self.tell(str(why))
            self.told.add(team.name)
            return False
        return True


def beside_name(name: str) -> str:
    """The name of hocket's blocks in a peer's processes."""
    return f"hocket beside {name}"


def line_name(name: str) -> str:
    """The name of the times of a cache line before those blocks."""
    return f"line beside {name}"


def _prepare_both(team: Team, case: Case) -> None:
    ours = team.beside
    if ours is not None:
        _prepare(ours, case)
    _prepare(team, case)


def _prepare(team: Team, case: Case) -> dict[str, str]:
    reports: list[dict[str, str]] = team.order("prepare", **asdict(case))
    return reports[0]


def _time(
    row: Row, ours: Team, peers: Sequence[Team], effort: Effort, lenient: _Lenient, line: Callable[[], float] | None
) -> list[Team]:
    """Fill in row.blocks, in turns; returns the peers that came through."""
    counts: dict[str, int] = {}

    def turn(team: Team, name: str = "") -> None:
        ours, name = team.beside, name or team.name
        if ours is not None:
            if line is not None:
                row.blocks.setdefault(line_name(name), []).append(line())
            turn(ours, beside_name(name))
        if name not in counts:
            counts[name] = _iterations(team, effort)
        row.blocks.setdefault(name, []).append(_block(team, counts[name], effort.touch))

    able = list(peers)
    for _ in range(effort.blocks):
        turn(ours)
        able = [team for team in able if lenient.able(team, turn)]
    return able


def _iterations(team: Team, effort: Effort) -> int:
    """Calls that fill a block's share of the time.  Decided here, for all ranks."""
    if effort.iterations is not None:
        return effort.iterations
    share = effort.seconds / effort.blocks
    once = _block(team, 1, effort.touch)
    if once < share / 20:  # a single short call is mostly noise, and libraries settle in their first calls
        once = _block(team, max(10, min(effort.warmup, int(share / once))), effort.touch)
    return max(1, min(MOST, int(share / max(once, 1e-7))))


def _block(team: Team, iterations: int, touch: bool) -> float:
    """Seconds of one call, of the slowest rank."""
    how = {"touch": True} if touch else {}
    return max(float(report["seconds"]) for report in team.order("time", iterations=iterations, **how))


def _wrong(team: Team) -> int:
    return sum(int(report["wrong"]) for report in team.order("check"))


def _suspect(team: Team, tell: Callable[[str], None]) -> None:
    """Report a peer's wrong elements: most likely it was asked for something else than we were."""
    wrong = _wrong(team)
    if wrong:
        tell(f"{team.name}: {wrong} elements differ from NumPy's result")
