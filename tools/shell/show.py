"""`hocket show allreduce ring -n 4`: the steps of an algorithm, as a table or a picture."""

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
    add("words", nargs="*", metavar="COLLECTIVE ALGORITHM",
        help=f"the collective (allreduce; or {', '.join([*CONTRACTS][1:])}), and the algorithm; none: lists them")
    add("--collective", metavar="C", help="the same, said by an option")
    add("-n", "--size", type=int, default=4, metavar="P", help="number of ranks (4)")
    add("--root", type=int, default=0, help="of broadcast, reduce, gather and scatter (0)")
    add("--from", dest="file", metavar="FILE", help="run this Python file first, which declares algorithms")
    add("-o", "--output", metavar="FILE", help="draw it: .svg, or .png with matplotlib")
    options = made.parse_args(argv)
    words: list[str] = options.words
    collective = options.collective or (words.pop(0) if words[:1] and words[0] in CONTRACTS else "allreduce")
    declared.load()
    try:
        if options.file is not None:
            declared.run(options.file)
        if len(words) > 1:
            made.error(f"{' '.join(words)!r} is more than an algorithm: give one, behind its collective")
        if not words:
            shown = "\n".join(names(collective))
        else:
            drawing = show(words[0], collective, options.size, options.root)
            shown = str(drawing)
            if options.output is not None:
                drawing.save(options.output)
                return 0
    except (Error, OSError) as why:
        made.error(str(why))
    print(shown)
    return 0
