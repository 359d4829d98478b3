"""One measured line of `make compare`: a target, the times beside it, and what it falls short of; as JSON and back."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from hocket.bench.harness.measure import beside_name, line_name
from hocket.bench.harness.targets import Target
from hocket.bench.rivals import launchers

FAR = 2.0
"""Cores are far apart while a cache line takes so many times as long as in the run's quicker blocks (page.nearest)."""


@dataclass
class Result:
    """One target and what came of it.  Seconds, by library."""

    target: Target
    seconds: dict[str, float]
    blocks: dict[str, list[float]]
    algorithm: str
    tails: dict[str, tuple[float | None, float]] = field(default_factory=dict)
    """The times that one call in ten (None: not measured) and one in a hundred exceed; hocket's as in `blocks`."""
    plain: float | None = None
    """Our own time for as many elements of float32, where that is asked for."""
    verdicts: list[str] = field(default_factory=list)
    """Targets that it misses."""

    @property
    def ours(self) -> float:
        return self.seconds["hocket"]

    @property
    def fastest_mpi(self) -> tuple[str, float] | None:
        """An MPI and its time."""
        mpis = [(s, name) for name, s in self.seconds.items() if _is_mpi(name)]
        return (min(mpis)[1], min(mpis)[0]) if mpis else None

    @property
    def worst_mpi(self) -> tuple[str, float, float] | None:
        """The MPI that hocket is slowest against: its name, its time, and how many times as long hocket takes.

        By blocks that alternate in the same processes, where there are such; else by the fastest MPI's time.
        """
        pairs = {name: self.blocks.get(beside_name(name), []) for name in self.seconds if _is_mpi(name)}
        ratios = {
            name: median(a / b for a, b in zip(ours, self.blocks[name], strict=True))
            for name, ours in pairs.items() if ours
        }  # fmt: skip
        if ratios:
            name = max(ratios, key=lambda each: ratios[each])
            return name, self.seconds[name], ratios[name]
        fastest = self.fastest_mpi
        return (*fastest, self.ours / fastest[1]) if fastest else None

    def by_distance(self, nearest: float) -> list[tuple[float, int]]:
        """(ratio to `worst_mpi`, blocks) with the cores near each other, then far apart, as far as blocks were so.

        `nearest`: seconds of a cache line in the run's quicker blocks.
        """
        name = self.worst_mpi[0] if self.worst_mpi else ""
        lines, ours = self.blocks.get(line_name(name), []), self.blocks.get(beside_name(name), [])
        kinds: list[list[float]] = [[], []]
        for line, a, b in zip(lines, ours, self.blocks.get(name, []), strict=bool(lines)):
            kinds[line > FAR * nearest].append(a / b)
        return [(median(each) if each else 0.0, len(each)) for each in kinds]

    def own_tail(self, name: str) -> tuple[float | None, float]:
        """hocket's p90 and p99 beside this library; else where it was measured alone."""
        return self.tails.get(beside_name(name)) or self.tails["hocket"]

    @property
    def lines(self) -> list[float]:
        """Every time of a cache line that was taken beside."""
        return [s for name, seconds in self.blocks.items() if name.startswith(line_name("")) for s in seconds]

    @property
    def limit(self) -> float | None:
        return self.seconds.get("limits")

    def judge(self) -> None:
        """Fill in `verdicts`: where this falls short of its target."""
        t, mpi, gloo = self.target, self.worst_mpi, self.seconds.get("gloo")
        if t.mpi and mpi and mpi[2] > t.mpi:
            self.verdicts.append(f"{mpi[2]:.2f} x MPI > {t.mpi:g}")
        if t.gloo and gloo and self.ours * t.gloo > gloo:
            self.verdicts.append(f"{gloo / self.ours:.1f} x faster than Gloo < {t.gloo:g}")
        if t.us and self.ours * 1e6 > t.us:
            self.verdicts.append(f"{self.ours * 1e6:.2f} us > {t.us:g}")
        if t.limit and self.limit and self.ours > t.limit * self.limit:
            self.verdicts.append(f"{self.ours / self.limit:.2f} x the machine > {t.limit:.3g}")
        if t.own and self.plain and self.ours > t.own * self.plain:
            self.verdicts.append(f"{self.ours / self.plain:.2f} x our float32 > {t.own:g}")
        for name, (_, theirs) in self.tails.items() if t.busy else ():
            if name.startswith("openmpi") and (own := self.own_tail(name)[1]) > theirs:
                self.verdicts.append(f"p99 {own * 1e6:.1f} us > {name}'s {theirs * 1e6:.1f}")


def _is_mpi(name: str) -> bool:
    return name.removesuffix("-single") in launchers.MPIS


def file_name(processor: str) -> str:
    """Where the results of a kind of CPU are kept: compare-intel-xeon-processor.json."""
    words = re.sub(r"\((R|TM)\)", " ", processor).lower()
    return f"compare-{'-'.join(re.findall(r'[a-z0-9]+', words))}.json"


def write(path: str, about: dict[str, Any], found: Sequence[Result]) -> None:
    """`about` and a row a line as one JSON object; times in microseconds."""
    rows = ",\n".join(json.dumps(_record(each)) for each in found)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{json.dumps(about, indent=1)[:-2]},\n \"rows\": [\n{rows}\n]}}\n")


def read(path: str) -> tuple[dict[str, Any], list[Result]]:
    """Read the file of `write`."""
    with open(path, encoding="utf-8") as file:
        about = json.load(file)
    return about, [_result(row) for row in about.pop("rows")]


def _record(r: Result) -> dict[str, Any]:
    blocks = {name: [_micro(s) for s in seconds] for name, seconds in r.blocks.items()}
    defaults = Target._field_defaults
    target = {name: value for name, value in r.target._asdict().items() if value != defaults.get(name, ...)}
    return {
        "target": target, "algorithm": r.algorithm, "short": r.verdicts,
        "tails_us": {name: [p90 and _micro(p90), _micro(p99)] for name, (p90, p99) in r.tails.items()},
        "float32_us": r.plain and _micro(r.plain),
        "us": {name: _micro(s) for name, s in r.seconds.items()}, "blocks_us": blocks,
    }  # fmt: skip


def _result(row: dict[str, Any]) -> Result:
    made = Result(
        Target(**row["target"]), {name: us / 1e6 for name, us in row["us"].items()},
        {name: [us / 1e6 for us in block] for name, block in row["blocks_us"].items()}, row["algorithm"],
        {name: (p90 and p90 / 1e6, p99 / 1e6) for name, (p90, p99) in row["tails_us"].items()},
        row["float32_us"] and row["float32_us"] / 1e6,
    )  # fmt: skip
    made.judge()
    return made


def _micro(seconds: float) -> float:
    """With more digits than mean anything, and no more."""
    return float(f"{seconds * 1e6:.6g}")
