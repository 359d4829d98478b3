"""hocket beside Gloo, every MPI at hand and the machine itself: `make compare`, or `python -m hocket.bench.compare`.

Each line of targets.py is measured in turns with all its rivals (measure.py), and a line that falls short is printed
as such.  Rivals are given their fast call: buffers with an explicit MPI type, in place, tensors made once.  Each MPI
runs twice, as mpi4py starts it and with thread level "single".  hocket runs by its own launcher, and beside each MPI in
the MPI's processes: what counts is the ratio there, to the MPI that it is worst against.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from statistics import median
from typing import Any

from hocket.bench.harness import environment, others
from hocket.bench.harness.measure import Effort, beside_name, measure
from hocket.bench.harness.page import HEADER, into_section, line, nearest, place, title
from hocket.bench.harness.result import Result, file_name, read, write
from hocket.bench.harness.targets import TARGETS, Target
from hocket.bench.harness.team import Half, Started, Team
from hocket.bench.harness.worker import Order
from hocket.bench.rivals import launchers
from hocket.collectives.measuring.cases import case
from hocket.errors import Error
from hocket.system.cores import usable_cores

PEERS = "gloo,openmpi,openmpi-single,mpich,mpich-single"
INTEL_CHEATS = "impi"
"""Keeps shared memory for small messages even when told not to, so it is left out of the lines over TCP."""

SPINS = "mpich-single"
"""Waits without ever yielding: with more ranks than cores a call takes milliseconds, and the run would take hours."""

TURNS, SLICE, FEWEST, MOST = 3, 0.2, 25, 2000
"""Turns of each library for p90 and p99, about how many seconds one takes, and the fewest and most calls of it."""


class LimitsTeam:
    """The team of limits in a library's place: it copies, or sends as raw bytes, what the case's result needs."""

    beside = None

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
        apart = Started("limits", 2, launchers.limits)
        outer.callback(apart.close)
        apart.order("prepare", collective="pingpong", size=2, count=1)
        yield from _pingpong(apart)
        for key in dict.fromkeys(_key(t) for t in targets):
            ranks, transport, buffers = key
            with ExitStack() as stack:
                settings: dict[str, str | None] = {"transport": transport, "buffers": buffers}
                ours = Started("hocket", ranks, launchers.ours(ranks, settings))
                stack.callback(ours.close)
                rivals = [team for text in peers if (team := _rival(text, ranks, transport, settings))]
                for team in rivals:
                    stack.callback(team.close)
                plain: dict[int, float] = {}  # seconds of an allreduce of float32, by elements
                for target in targets:
                    if _key(target) == key:
                        extra = [LimitsTeam(limits, target)] if target.limit else []
                        yield _result(target, ours, [*rivals, *extra], effort, plain, apart)


def _key(target: Target) -> tuple[int, str, str]:
    return target.ranks, target.transport, target.buffers


def _rival(text: str, ranks: int, transport: str, settings: dict[str, str | None]) -> Team | None:
    """The team of a rival; of an MPI, with hocket in the same processes."""
    name = text.partition("=")[0]
    tcp, mpi = transport == "tcp", name != "gloo"
    if tcp and name.startswith(INTEL_CHEATS) or name == SPINS and ranks > usable_cores():
        return None
    try:
        team = Started(name, ranks, launchers.peer(text, ranks, tcp, settings if mpi else None))
    except Error as why:
        print(f"# not measured: {why}", file=sys.stderr)
        return None
    return Half(team, name, Half(team, "hocket")) if mpi else team


def _result(
    target: Target, ours: Team, rivals: Sequence[Team], effort: Effort, plain: dict[int, float], apart: Team
) -> Result:  # fmt: skip
    one = case(target.collective, target.ranks, target.nbytes, target.dtype, "sum", 0)
    with _neighbour() if target.busy else nullcontext():
        told = target.ranks == 2 and not target.busy  # with more ranks than cores none is far from all others
        effort = replace(effort, touch=target.touch)
        (row,) = measure([one], ours, rivals, effort, line=(lambda: _line(apart)) if told else None)
        result = Result(target, {"hocket": row.seconds, **row.peers}, row.blocks, row.algorithm)
        worst = result.worst_mpi[0] if result.worst_mpi else ""
        able = [team for team in rivals if team.name in row.peers]
        beside = [t for t in able if t.name == worst or target.busy and t.name.startswith("openmpi")]
        for team in beside or [ours]:
            result.tails |= _tails(team, result.seconds[team.name], target.touch)
    if target.collective == "allreduce" and target.dtype == "float32" and not target.touch:
        plain[one.count] = row.seconds
    result.plain = plain.get(one.count) if target.own else None
    result.judge()
    return result


def _tails(team: Team, seconds: float, touch: bool) -> dict[str, tuple[float, float]]:
    """p90 and p99 of calls one after the other, of this team's and before it of hocket's beside it.

    The median of so many turns.  `seconds`: about what a call takes.
    """
    both = {team.name: team} if team.beside is None else {beside_name(team.name): team.beside, team.name: team}
    count = max(FEWEST, min(MOST, int(SLICE / seconds)))
    turns = [{name: _quantiles(each, count, touch) for name, each in both.items()} for _ in range(TURNS)]
    return {name: (median(t[name][0] for t in turns), median(t[name][1] for t in turns)) for name in both}


def _quantiles(team: Team, count: int, touch: bool) -> tuple[float, float]:
    each = sorted(s for report in team.order("each", iterations=count, touch=touch) for s in report["each"])
    return float(each[len(each) * 90 // 100]), float(each[len(each) * 99 // 100])


@contextmanager
def _neighbour() -> Iterator[None]:
    """A busy process that has nothing to do with us."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


def _line(apart: Team, iterations: int = 10) -> float:
    """Seconds of a cache line to the other core and back.

    One iteration would be as short as the time by which one rank starts later than the other.
    """
    from hocket.bench.rivals.hardware import ROUNDS

    return max(float(r["seconds"]) for r in apart.order("time", iterations=iterations)) / ROUNDS


def _pingpong(apart: Team) -> Iterator[Result]:
    """A cache line there and back: what the times of small messages are made of."""
    blocks = [_line(apart, 20) for _ in range(7)]
    yield Result(Target(2, 64, collective="pingpong"), {"hocket": median(blocks)}, {"limits": blocks}, "")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m hocket.bench.compare", description=__doc__.split("\n")[0])
    made.add_argument("--peers", default=PEERS, help=f"as of `hocket bench` ({PEERS}); impi=/prefix for Intel MPI")
    made.add_argument("--only", default="", metavar="TEXT", help="lines whose title holds this")
    made.add_argument("--time", type=float, default=0.4, help="seconds for one line and library (0.4)")
    made.add_argument("--blocks", type=int, default=7, help="turns of which the median counts (7)")
    made.add_argument("--from", metavar="FILE", dest="earlier", help="measure nothing: what --json kept of another run")
    made.add_argument("--json", metavar="PATH", help="keep everything; in a folder: in a file named by the processor")
    made.add_argument("--plot", metavar="FILE", help="draw allreduce beside Gloo and the fastest MPI: .svg or .png")
    made.add_argument("--others", action="store_true", help="messages, starting, shared cores and lists, too")
    made.add_argument("--page", metavar="FILE", help="put the table into this page's section of this kind of CPU")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    about, found = read(options.earlier) if options.earlier else _measured(options)
    if options.others:
        about["others"] = others.measured(_texts(options.peers))
        print(others.words(about["others"]))
    if options.json:
        named = os.path.join(options.json, file_name(about["machine"]["processor"]))
        named = named if os.path.isdir(options.json) else options.json
        write(named, about, found)
        about, found = read(named)  # the page shows what is kept: its ratios are of rounded times
    if options.page:
        into_section(options.page, about, found)
    if options.plot:
        from hocket.bench.harness.plot import times

        times(options.plot, about["machine"]["processor"], found)
    return 0


def _texts(peers: str) -> list[str]:
    return [text for text in peers.split(",") if text]


def _measured(options: argparse.Namespace) -> tuple[dict[str, Any], list[Result]]:
    """Measure, and print each line as it comes."""
    chosen = [t for t in TARGETS if options.only in title(t)]
    peers = _texts(options.peers)
    about: dict[str, Any] = {"machine": environment.describe(), "date": time.strftime("%d %B %Y")}
    print(f"{place(about)}\n\n{HEADER}")
    found = []
    for result in results(chosen, peers, Effort(options.time, options.blocks)):
        found.append(result)
        print(line(result, nearest(found)), flush=True)
    short = sum(bool(result.verdicts) for result in found)
    print(f"\n{len(found) - 1} lines, {short} fall short of their target", flush=True)
    return {**about, "load_after": list(os.getloadavg())}, found


if __name__ == "__main__":
    sys.exit(main())
