"""`hocket report TRACE`: what a trace says, in words; -o: as a page with pictures; --what-if: what would help."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from hocket.arguments import printable
from hocket.errors import ArgumentError
from hocket.observe.files.reading import read
from hocket.observe.files.writing import replacing
from hocket.observe.findings import find
from hocket.observe.page.make import page
from hocket.observe.replay import what_if
from hocket.observe.sentences import summary


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line behind `hocket report`.  0; 1: the trace cannot be read or replayed, or the page written."""
    made = argparse.ArgumentParser(prog="hocket report", description="What a trace says.", allow_abbrev=False)
    traces = "a .pftrace or .json that hocket wrote, packed or not; Horovod's timeline; torch's profiles, of all ranks"
    made.add_argument("trace", metavar="TRACE", nargs="+", help=traces)
    made.add_argument("-o", "--output", metavar="PAGE.html", help="one page that needs nothing else, no network either")
    changes = '"link 0-1 x2", "rank 2 like the median", "codec int8", "policy priority": replay it so'
    made.add_argument("--what-if", metavar="CHANGE", help=changes)
    options = made.parse_args(argv)
    try:
        found = find(read(*options.trace))
        for line in summary(found):
            print(printable(line, 1000))
        if options.what_if is not None:
            print(what_if(found, options.what_if))
        if options.output is not None:
            with replacing(options.output) as file:
                file.write(page(found).encode())
            print(f"the page is {options.output}")
    except ArgumentError as why:
        print(f"hocket report: {why}", file=sys.stderr)
        return 1
    return 0
