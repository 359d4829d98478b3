"""`hocket top`: this user's jobs on this host, also those that hang: each rank's call, and for whom it waits.

It reads the ranks' recorders in /proc (collectives/recording/processes.py), which costs the ranks nothing and needs
nothing of them: a rank that is stopped, or holds the GIL for ever, is seen as well.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import sys
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from hocket.collectives.recording.processes import ProcessRecord, recorders, without_one
from hocket.collectives.recording.records import SPAN, Kind, Recorded
from hocket.collectives.recording.standing import (
    Standing,
    awaits,
    circles,
    each_other,
    holding_up,
    printable,
    standings,
    words,
)  # fmt: skip

MOST_MARKS = 8
"""Names of marks that are shown of a rank: the latest."""


class RankRow(NamedTuple):
    """One rank."""

    rank: int
    pid: int | None
    """None: it has died, and its launcher keeps the recorder."""
    state: str
    standings: list[Standing]
    marks: dict[str, int]
    """The latest of each name, and its value."""
    calls_a_second: float
    bytes_a_second: float
    overflow: str
    """Things that its recorder had no room for, in words."""
    verdict: str = ""
    """The kind of the latest failure that it heard of, as "lost", or "".  Later calls are refused, not recorded."""


class Jobs(NamedTuple):
    """The jobs to show."""

    jobs: dict[str, list[RankRow]]
    """By the job's id; ranks in order."""
    held_up_by: dict[str, list[int]]
    unseen: list[int]
    """Processes that use hocket and have no recorder to be read."""
    circles: dict[str, list[list[int]]] = {}
    """Ranks that wait for each other, by job."""
    closed: int = 0
    """Jobs that have ended, whose processes live: left out."""

    def only(self, which: str | None) -> Jobs:
        """One job, or the one with this process; None: those that have not ended."""
        wanted = {
            job: rows for job, rows in self.jobs.items()
            if (not all(map(ended, rows)) if which is None else which == job or which in {str(row.pid) for row in rows})
        }  # fmt: skip
        closed = len(self.jobs) - len(wanted) if which is None else 0
        return self._replace(jobs=wanted, closed=closed, unseen=self.unseen if which is None else [])


def ended(row: RankRow) -> bool:
    """Has it left its job?"""
    left = any(each.comm == "world" and each.call == "close()" and not each.inside for each in row.standings)
    return left or row.pid is None


def main(argv: Sequence[str]) -> int:
    """Run the command line behind `hocket top`."""
    what = "This user's jobs on this host."
    parser = argparse.ArgumentParser(prog="hocket top", description=what, allow_abbrev=False)
    parser.add_argument("--once", action="store_true", help="print what there is now, and end")
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    parser.add_argument("--all", action="store_true", help="also jobs that have ended, whose processes live")
    parser.add_argument("--flight", metavar="FOLDER", help="dumps of the ranks there, for torch's torchfrtrace")
    parser.add_argument("which", metavar="JOB|PID", nargs="?", help="only this job, or that of this process")
    options = parser.parse_args(argv)

    def there() -> Jobs:
        return look() if options.all else look().only(options.which)

    if options.which is not None and not there().jobs:
        print(f"hocket top: there is no job or rank {printable(options.which)!r} of this user here", file=sys.stderr)
        return 1
    if options.flight:
        return write_flight(options.flight, list(there().jobs))
    if options.json:
        print(json.dumps(as_json(there()), indent=1))
        return 0
    if options.once or not sys.stdout.isatty():
        print(as_text(there()))
        return 0
    try:
        from hocket.tools.top_screen import show
    except ImportError as why:
        print(f"hocket top: {why}; install 'hocket[top]' for its screen, or ask for --once", file=sys.stderr)
        return 1
    return show(there)


def write_flight(folder: str, jobs: Sequence[str]) -> int:
    """Write a file for each rank of the one job that is there."""
    from hocket.observe.files.flight import dump

    if len(jobs) != 1:
        print(f"hocket top: --flight takes one job, and there are {len(jobs)}: name one", file=sys.stderr)
        return 1
    os.makedirs(folder, exist_ok=True)
    for process in recorders(job=jobs[0]):
        for part in process.parts:
            with open(os.path.join(folder, f"hocket_{part.facts.rank}"), "wb") as file:
                pickle.dump(dump(part), file)
    print(f"torchfrtrace --allow-incomplete-ranks --prefix hocket_ {folder}")
    return 0


def look(among: Collection[int] | None = None) -> Jobs:
    """Look at all processes once, or at these."""
    found = recorders(among=among)
    by_job: dict[str, list[tuple[Recorded, ProcessRecord]]] = {}
    for process in found:
        for part in process.parts:
            by_job.setdefault(part.facts.job, []).append((part, process))
    # A dead rank may be there beside the newcomer that took its place.
    rows = {
        job: sorted((_row(*each) for each in there), key=lambda row: (row.rank, row.pid or 0))
        for job, there in by_job.items()
    }
    parts = {job: [part for part, _ in there] for job, there in by_job.items()}
    held = {job: holding_up(each) for job, each in parts.items()}
    around = {job: circles(awaits(each)) for job, each in parts.items()}
    return Jobs(rows, held, without_one(found) if among is None else [], around)


def _row(part: Recorded, process: ProcessRecord) -> RankRow:
    marks: dict[str, int] = {}
    calls, nbytes, first, last, verdict = 0, 0, 0, 0, ""
    for ring in part.rings:
        kinds = ring.records["kind"]
        for mark in ring.records[(kinds == Kind.MARK) & (ring.records["lane"] != SPAN)]:
            name = printable(part.what(int(mark["what"])).text)
            marks.pop(name, None)
            marks[name] = int(mark["bytes"])
        for said in ring.records[kinds == Kind.VERDICT][-1:]:
            verdict = printable(part.what(int(said["what"])).text)
        ended = ring.records[(kinds == Kind.DONE) | (kinds == Kind.CALLED)]
        if len(ended):
            calls, nbytes = calls + len(ended), nbytes + int(ended["bytes"].sum())
            first = min(first or int(ended["ns"][0]), int(ended["ns"][0]))
            last = max(last, int(ended["ns"][-1]))
    seconds = (last - first) * 1e-9
    rates = (calls / seconds, nbytes / seconds) if seconds > 0 else (0.0, 0.0)
    return RankRow(
        part.facts.rank, process.pid, process.state, standings(part),
        dict(list(marks.items())[-MOST_MARKS:]), *rates, part.facts.overflow, verdict,
    )  # fmt: skip


def as_json(there: Jobs) -> dict[str, Any]:
    """The same as values that JSON has."""
    rows = {
        job: [{**row._asdict(), "standings": [each._asdict() for each in row.standings]} for row in ranks]
        for job, ranks in there.jobs.items()
    }  # fmt: skip
    of = {name: {job: each[job] for job in rows if job in each} for name, each in (
        ("held_up_by", there.held_up_by), ("wait_for_each_other", there.circles))}  # fmt: skip
    return {"jobs": rows, **of, "unseen": there.unseen}


def as_text(there: Jobs) -> str:
    """For a terminal; names of others are cleaned."""
    lines = [] if there.jobs else ["no jobs of this user on this host"]
    for job, rows in there.jobs.items():
        held = ", ".join(map(str, there.held_up_by[job]))
        slow = f"; the others wait for rank{'s' * (len(there.held_up_by[job]) > 1)} {held}" if held else ""
        around = there.circles.get(job, [])
        if set(there.held_up_by[job]) <= {rank for circle in around for rank in circle} and around:
            slow = "".join(f"; {each_other(circle)}" for circle in around)
        lines.append(f"job {printable(job)}: {len(rows)} rank{'s' * (len(rows) != 1)} here{slow}")
        for row in rows:
            where = f"pid {row.pid}, {row.state}" if row.pid is not None else "dead"
            rate = f"{row.calls_a_second:,.0f} calls/s, {row.bytes_a_second / 1e6:,.1f} MB/s"
            lines.append(f"  rank {row.rank} ({where}): {words(row.standings[0]) if row.standings else 'no call yet'}")
            lines += [f"      {words(each)}" for each in row.standings[1:4]]
            marks = "".join(f", {name} {value}" for name, value in row.marks.items())
            heard = f"it heard of a failure ({row.verdict})" if row.verdict else ""
            lines.append("; ".join(filter(None, [f"      {rate}{marks}", heard, row.overflow])))
    if there.closed:
        said = "job that has ended is" if there.closed == 1 else "jobs that have ended are"
        lines.append(f"{there.closed} {said} not shown (--all)")
    if there.unseen:
        pids = ", ".join(map(str, there.unseen[:20]))
        lines.append(f"processes with hocket that cannot be seen (HOCKET_RECORDER=0, private memory, no job): {pids}")
    return "\n".join(lines)
