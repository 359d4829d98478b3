"""`hocket trace merge DIR`: one trace of what the ranks of a job left in a folder, also after a crash."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from hocket.arguments import printable
from hocket.errors import ArgumentError
from hocket.observe.collecting import generations, jobs
from hocket.observe.files.names import SUFFIXES
from hocket.observe.files.writing import write
from hocket.observe.findings import find
from hocket.observe.merging import merge
from hocket.observe.sentences import gaps, summary
from hocket.observe.timeline import Timeline

MANY = 2_000_000
"""Slices, above which the summary would take longer than all the rest."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line behind `hocket trace`.  0; 1: there is nothing to merge, or it cannot be written."""
    made = argparse.ArgumentParser(prog="hocket trace", description="Traces of jobs.", allow_abbrev=False)
    words = made.add_subparsers(required=True, metavar="merge")
    merging = words.add_parser("merge", help="join what the ranks of a job left in a folder", allow_abbrev=False)
    merging.add_argument("folder", metavar="DIR", help="that HOCKET_TRACE named")
    name = f"the trace; its name ends in {', '.join(SUFFIXES)} (default: DIR.pftrace.gz)"
    merging.add_argument("-o", "--output", metavar="PATH", help=name)
    merging.add_argument("--job", metavar="ID", help="of a folder with recordings of several jobs: this one")
    merging.add_argument("--each", action="store_true", help="of several jobs: a trace of each, its ID in the name")
    options = made.parse_args(argv)
    path = options.output or f"{os.path.normpath(options.folder)}.pftrace.gz"
    try:
        several = jobs(options.folder) if options.each else []
        for job in several if len(several) > 1 else []:
            _merge(options.folder, job, _numbered(path, job))
        return 0 if len(several) > 1 else _merge(options.folder, options.job, path)
    except ArgumentError as why:
        print(f"hocket trace: {why}", file=sys.stderr)
        return 1


def _merge(folder: str, job: str | None, path: str) -> int:
    parts = generations(folder, job)
    for name, why in next(iter(parts.values())).refused.items():
        print(f"left out: {printable(name)}: {why}", file=sys.stderr)
    for name, left in parts.items():
        if len(parts) > 1:
            print(f"generation {printable(name.rpartition('.')[2])}:")
        _written(merge(left.recorded, left.pings), path if len(parts) == 1 else _numbered(path, name))
    return 0


def _numbered(path: str, name: str) -> str:
    """run.pftrace.gz of generation 2 is run.2.pftrace.gz."""
    suffix = next(each for each in sorted(SUFFIXES, key=len, reverse=True) if path.endswith(each))
    return f"{path.removesuffix(suffix)}.{name.rpartition('.')[2]}{suffix}"


def _written(timeline: Timeline, path: str) -> None:
    write(path, timeline)
    many = len(timeline.slices)
    if many > MANY:
        print(f"{many:,} slices: `hocket report` tells who waited for whom (10 s for each million)")
    for line in gaps(timeline) if many > MANY else summary(find(timeline)):
        print(printable(line, 1000))
    print(f"the trace is {path}: open it at ui.perfetto.dev, or run `hocket report {path}`")
