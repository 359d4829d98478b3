"""hocket beside Gloo, every MPI at hand and the machine itself: `make compare`, or `python -m hocket.bench.compare`.

Each line of targets.py is measured in turns with all its rivals (measure.py), and a line that falls short is printed
as such.  Rivals are given their fast call: buffers with an explicit MPI type, in place, tensors made once.  Each MPI
runs twice, as mpi4py starts it and with thread level "single"; the better one counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from hocket.bench.harness import machine
from hocket.bench.harness.measure import Effort, measure
from hocket.bench.harness.table import micro
from hocket.bench.harness.targets import TARGETS, Target
from hocket.bench.harness.team import Started, Team
from hocket.bench.harness.worker import Order
from hocket.bench.rivals import launchers
from hocket.collectives.communicator.explain import human
from hocket.collectives.tuning.cases import case
from hocket.errors import ArgumentError, Error
from hocket.system.cores import usable_cores

PEERS = "gloo,openmpi,openmpi-single,mpich,mpich-single"
INTEL_CHEATS = "impi"
"""Keeps shared memory for small messages even when told not to, so it is left out of the lines over TCP."""

SPINS = "mpich-single"
"""Waits without ever yielding: with more ranks than cores a call takes milliseconds, and the run would take hours."""


@dataclass
class Result:
    """One target and what came of it.  Seconds, by library."""

    target: Target
    seconds: dict[str, float]
    blocks: dict[str, list[float]]
    algorithm: str
    slow: dict[str, float] = field(default_factory=dict)
    """What one call in a hundred takes longer than."""
    plain: float | None = None
    """Our own time for as many elements of float32, where that is asked for."""
    verdicts: list[str] = field(default_factory=list)
    """What it falls short of."""

    @property
    def ours(self) -> float:
        return self.seconds["hocket"]

    @property
    def best_mpi(self) -> tuple[str, float] | None:
        """The fastest MPI and its time."""
        mpis = [(s, name) for name, s in self.seconds.items() if name.removesuffix("-single") in launchers.MPIS]
        return (min(mpis)[1], min(mpis)[0]) if mpis else None

    @property
    def limit(self) -> float | None:
        return self.seconds.get("limits")

    def judge(self) -> None:
        """Fill in what the target asks for and this is not."""
        t, mpi, gloo = self.target, self.best_mpi, self.seconds.get("gloo")
        if t.mpi and mpi and self.ours > t.mpi * mpi[1]:
            self.verdicts.append(f"{self.ours / mpi[1]:.2f} x MPI > {t.mpi:g}")
        if t.gloo and gloo and self.ours * t.gloo > gloo:
            self.verdicts.append(f"{gloo / self.ours:.1f} x faster than Gloo < {t.gloo:g}")
        if t.us and self.ours * 1e6 > t.us:
            self.verdicts.append(f"{self.ours * 1e6:.2f} us > {t.us:g}")
        if t.limit and self.limit and self.ours > t.limit * self.limit:
            self.verdicts.append(f"{self.ours / self.limit:.2f} x the machine > {t.limit:.3g}")
        if t.own and self.plain and self.ours > t.own * self.plain:
            self.verdicts.append(f"{self.ours / self.plain:.2f} x our float32 > {t.own:g}")
        theirs = [s for name, s in self.slow.items() if name.startswith("openmpi")]
        if theirs and self.slow["hocket"] > min(theirs):
            self.verdicts.append(f"p99 {self.slow['hocket'] * 1e6:.1f} us > Open MPI's {min(theirs) * 1e6:.1f}")


class Machine:
    """The team of limits in a library's place: copies, or sends raw bytes, what the case's result would need."""

    def __init__(self, team: Team, target: Target) -> None:
        self.team, self.name, self.about = team, "limits", team.about
        tcp = target.transport == "tcp"
        # All ranks together send 2(p - 1)n bytes, and one socket carries two streams at once.
        self.count = target.nbytes // 4 * (target.ranks - 1 if tcp else 1)
        self.what = "duplex" if tcp else "memcpy"

    def order(self, do: str, **fields: Any) -> list[Order]:
        if do == "prepare":
            fields = {"collective": self.what, "size": 2, "count": self.count}
        return self.team.order(do, **fields)

    def close(self) -> None: ...


def results(targets: Sequence[Target], peers: Sequence[str], effort: Effort) -> Iterator[Result]:
    """Every target's result, as they come; those that share a team stand together."""
    with ExitStack() as outer:
        limits = Started("limits", 2, launchers.limits)
        outer.callback(limits.close)
        yield from _pingpong(limits)
        for key in dict.fromkeys(_key(t) for t in targets):
            ranks, transport, buffers = key
            with ExitStack() as stack:
                settings: dict[str, str | None] = {"transport": transport, "buffers": buffers}
                ours = Started("hocket", ranks, launchers.ours(ranks, settings))
                stack.callback(ours.close)
                rivals = [team for text in peers if (team := _rival(text, ranks, transport))]
                for team in rivals:
                    stack.callback(team.close)
                plain: dict[int, float] = {}  # seconds of an allreduce of float32, by elements
                for target in targets:
                    if _key(target) == key:
                        extra = [Machine(limits, target)] if target.limit else []
                        yield _result(target, ours, [*rivals, *extra], effort, plain)


def _key(target: Target) -> tuple[int, str, str]:
    return target.ranks, target.transport, target.buffers


def _rival(text: str, ranks: int, transport: str) -> Started | None:
    name = text.partition("=")[0]
    tcp = transport == "tcp"
    if tcp and name.startswith(INTEL_CHEATS) or name == SPINS and ranks > usable_cores():
        return None
    try:
        return Started(name, ranks, launchers.peer(text, ranks, tcp))
    except Error as why:
        print(f"# not measured: {why}", file=sys.stderr)
        return None


def _result(
    target: Target, ours: Team, rivals: Sequence[Team], effort: Effort, plain: dict[int, float]
) -> Result:  # fmt: skip
    one = case(target.collective, target.ranks, target.nbytes, target.dtype, "sum", 0)
    with _neighbour() if target.busy else nullcontext():
        (row,) = measure([one], ours, rivals, effort)
        result = Result(target, {"hocket": row.seconds, **row.peers}, row.blocks, row.algorithm)
        teams = [ours, *(team for team in rivals if target.busy and team.name in row.peers)]
        result.slow = {team.name: _p99(team) for team in teams if row.seconds < 1e-3}
    if target.collective == "allreduce" and target.dtype == "float32":
        plain[one.count] = row.seconds
    result.plain = plain.get(one.count) if target.own else None
    result.judge()
    return result


def _p99(team: Team) -> float:
    """Seconds that one call in a hundred takes longer than, of calls one after the other."""
    each = sorted(s for report in team.order("each", iterations=2000) for s in report["each"])
    return float(each[len(each) * 99 // 100])


@contextmanager
def _neighbour() -> Iterator[None]:
    """A busy process that has nothing to do with us."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


def _pingpong(limits: Team) -> Iterator[Result]:
    """A cache line to the other core and back: what the times of small messages are made of."""
    from hocket.bench.rivals.machine import ROUNDS

    limits.order("prepare", collective="pingpong", size=2, count=1)
    blocks = [max(float(r["seconds"]) for r in limits.order("time", iterations=20)) / ROUNDS for _ in range(7)]
    yield Result(Target(2, 64, collective="pingpong"), {"hocket": median(blocks)}, {"limits": blocks}, "")


def title(t: Target) -> str:
    """allreduce 64 KiB, 4 ranks, tcp."""
    words = [f"{t.collective} {human(t.nbytes)}" if t.nbytes else t.collective, f"{t.ranks} ranks"]
    words += [t.transport] * (t.transport != "shm") + [t.dtype] * (t.dtype != "float32")
    words += ["a busy neighbour"] * t.busy
    return ", ".join(words + [{"shared": "hocket.empty", "torch": "torch"}.get(t.buffers, "")]).rstrip(", ")


BEGIN, END = "<!-- make compare -->", "<!-- end -->"
HEADER = (
    "| what | hocket us | p99 us | best MPI us | ours / MPI | target | x faster than Gloo | target | ours / machine | "
    "target | falls short |\n|" + "---|" * 11
)


def line(result: Result) -> str:
    """One row of the Markdown table."""
    t, mpi, gloo = result.target, result.best_mpi, result.seconds.get("gloo")
    cells = [
        title(t),
        micro(result.ours),
        micro(result.slow["hocket"]) if result.slow else "",
        f"{micro(mpi[1])} ({mpi[0]})" if mpi else "",
        f"{result.ours / mpi[1]:.2f}" if mpi else "",
        f"{t.mpi:g}" if t.mpi else "",
        f"{gloo / result.ours:,.1f}" if gloo else "",
        f"{t.gloo:g}" if t.gloo else "",
        f"{result.ours / result.limit:.2f}" if result.limit else "",
        f"{t.limit:.3g}" if t.limit else "",
        "; ".join(result.verdicts),
    ]
    return "| " + " | ".join(cells) + " |"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m hocket.bench.compare", description=__doc__.split("\n")[0])
    made.add_argument("--peers", default=PEERS, help=f"as of `hocket bench` ({PEERS}); impi=/prefix for Intel MPI")
    made.add_argument("--only", default="", metavar="TEXT", help="lines whose title holds this")
    made.add_argument("--time", type=float, default=0.4, help="seconds for one line and library (0.4)")
    made.add_argument("--blocks", type=int, default=7, help="turns of which the median counts (7)")
    made.add_argument("--json", metavar="FILE")
    made.add_argument("--plot", metavar="PNG")
    made.add_argument("--readme", metavar="FILE", help=f"put the table into this file, between {BEGIN} and {END}")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    chosen = [t for t in TARGETS if options.only in title(t)]
    peers = [text for text in options.peers.split(",") if text]
    before = machine.describe()
    place = f"{before['processor']}, {before['usable_cores']} usable cores, load {before['load'][0]:.2f} at the start"
    print(f"{place}\n\n{HEADER}")
    found = []
    for result in results(chosen, peers, Effort(options.time, options.blocks)):
        print(line(result), flush=True)
        found.append(result)
    short = sum(bool(result.verdicts) for result in found)
    print(f"\n{len(found) - 1} lines, {short} fall short of their target")
    if options.json:
        write(options.json, before, found)
    if options.readme:
        into(options.readme, "\n".join([f"{place}, {time.strftime('%d %B %Y')}", "", HEADER, *map(line, found)]))
    if options.plot:
        from hocket.bench.harness.plot import ratios

        ratios(options.plot, [(title(r.target), r.ours / mpi[1], r.target.mpi) for r in found if (mpi := r.best_mpi)])
    return 0


def into(path: str, table: str, mark: str = BEGIN) -> None:
    """Replace what stands in a file between `mark` and the next END."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    head, begin, rest = text.partition(mark)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ArgumentError(f"{path} has no {mark} and {END}, between which the table would go")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{head}{begin}\n{table}\n{end}{tail}")


def write(path: str, before: dict[str, Any], found: Sequence[Result]) -> None:
    """Everything as one JSON object; times in microseconds."""
    rows = [
        {
            **r.target._asdict(), "algorithm": r.algorithm, "short": r.verdicts,
            "p99_us": {name: s * 1e6 for name, s in r.slow.items()},
            "float32_us": r.plain and r.plain * 1e6, "us": {name: s * 1e6 for name, s in r.seconds.items()},
            "blocks_us": {name: [s * 1e6 for s in seconds] for name, seconds in r.blocks.items()},
        }
        for r in found
    ]  # fmt: skip
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"machine": before, "load_after": list(os.getloadavg()), "rows": rows}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    sys.exit(main())
