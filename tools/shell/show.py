"""`hocket show ring -n 4`: the steps of an algorithm, as a table or a picture."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from hocket.algorithms import CONTRACTS, names
from hocket.algorithms.drawing.draw import show
from hocket.collectives.choice import declared
from hocket.errors import Error


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line behind `hocket show`.  0; 2: bad arguments."""
    made = argparse.ArgumentParser(prog="hocket show", description=__doc__, allow_abbrev=False)
    add = made.add_argument
    add("algorithm", nargs="?", metavar="ALGORITHM", help="its name; without one: the names that there are")
    add("--collective", default="allreduce", metavar="C", help=f"{', '.join(CONTRACTS)} (allreduce)")
    add("-n", "--size", type=int, default=4, metavar="P", help="number of ranks (4)")
    add("--root", type=int, default=0, help="of broadcast, reduce, gather and scatter (0)")
    add("-o", "--output", metavar="FILE", help="draw it: .svg, or .png with matplotlib")
    options = made.parse_args(argv)
    declared.load()
    try:
        if options.algorithm is None:
            shown = "\n".join(names(options.collective))
        else:
            drawing = show(options.algorithm, options.collective, options.size, options.root)
            shown = str(drawing)
            if options.output is not None:
                drawing.save(options.output)
                return 0
    except (Error, OSError) as why:
        made.error(str(why))
    print(shown)
    return 0
