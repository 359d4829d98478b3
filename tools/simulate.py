"""`hocket simulate allreduce --size 64 --bytes 1M --topology ...`: a collective on machines that are not at hand.

The command only: reads its words, prints the table, writes JSON and the picture.  algorithms/prediction/simulate.py
says what is simulated, and how true it is.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import groupby
from typing import Any

from hocket.algorithms import CONTRACTS, Prediction, Topology, get, hierarchical, names, simulate, topology
from hocket.algorithms.hierarchical import STAGES
from hocket.algorithms.language.registry import Algorithm
from hocket.algorithms.prediction.topology import DEFAULTS, FORMS, OPTIONS, UNITS
from hocket.arguments import human
from hocket.bench.harness.table import micro
from hocket.collectives.choice import declared
from hocket.collectives.choice.choose import choose
from hocket.collectives.choice.fabric import Fabric
from hocket.collectives.choice.tuning import Tuning
from hocket.collectives.measuring.cases import COLLECTIVES, parse_size
from hocket.errors import ArgumentError, Error
from hocket.transports.base import Traits
from hocket.transports.shm.transport import RINGS

COLUMNS = (
    ("algorithm", "", 20), ("ranks", "", 7), ("bytes", "(B)", 12), ("time", "(us)", 11), ("algbw", "(GB/s)", 9),
    ("busbw", "(GB/s)", 9), ("messages", "", 11), ("sent", "(B, most)", 12),
)  # fmt: skip
"""(name, unit, width).  Behind them: the busiest link, and marks for the best and for hocket's unmeasured choice."""

FORMS_WRITTEN = [form.written for form in FORMS.values()]
TOPOLOGIES = "\n  ".join(["topologies:", *FORMS_WRITTEN, f"each with {OPTIONS}", UNITS, *DEFAULTS])


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="hocket simulate", description="Predict a collective.", allow_abbrev=False, epilog=TOPOLOGIES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = made.add_argument
    add("collective", choices=list(CONTRACTS), metavar="COLLECTIVE",
        help=f"{', '.join(CONTRACTS)}; or training: which method pays, `hocket simulate training --help`")
    add("--algorithm", default="all", metavar="A,...", help="names, hierarchical among them, or all (the default)")
    add("--size", required=True, metavar="P,...", help="numbers of ranks")
    add("--bytes", required=True, metavar="N,...", help="a rank's whole vector: 8, 64K, 1M (powers of 1024)")
    add("--topology", required=True, metavar="SPEC", help="as hosts:4x8,inside=0.3us/10GB,link=20us/10Gbit; see below")
    add("--root", type=int, default=0, help="of broadcast, reduce, gather and scatter (0)")
    add("--json", metavar="FILE", help="write all numbers")
    add("--markdown", metavar="FILE", help="write a table for each of --bytes: algorithms by ranks")
    add("--plot", metavar="PNG", help="draw time over ranks, or over bytes if one size is given (needs matplotlib)")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line behind `hocket simulate`.  0; 1: not all could be simulated; 2: bad arguments."""
    words = sys.argv[1:] if argv is None else [*argv]
    if words[:1] == ["training"]:
        from hocket.tools.simulate_training import main as training

        return training(words[1:])
    made = parser()
    declared.load()
    options = made.parse_args(words)
    try:
        return _report(options)
    except Error as why:
        made.error(str(why))


def _report(options: argparse.Namespace) -> int:
    there = topology(options.topology)
    cases = _cases(options, there)
    for file in filter(None, (options.json, options.markdown, options.plot)):
        if not os.access(os.path.dirname(os.path.abspath(file)), os.W_OK) or os.path.isdir(file):
            raise ArgumentError(f"{file} cannot be written")
    if options.plot and find_spec("matplotlib") is None:
        raise ArgumentError("--plot needs matplotlib (pip install matplotlib)")
    print(f"# {options.collective} on {options.topology}")
    if there.assumed:
        print(f"# assumed: {there.assumed}")
    print(header(), flush=True)
    rows: list[Prediction] = []
    chosen: list[Prediction] = []
    for (size, nbytes), some in groupby(cases, lambda case: case[1:]):
        groups = there.groups(size)
        segment = RINGS.segment if len(groups) == 1 else Traits().between_hosts
        where = Fabric(tuple(map(len, groups)), "shm", "tcp", segment)
        found = []
        for algorithm, _, _ in some:
            try:
                found.append(simulate(algorithm, size, nbytes, there, options.root, segment))
            except ArgumentError as why:
                print(f"# not simulated: {why}", file=sys.stderr)
        found.sort(key=lambda row: row.seconds)
        own = choose(Tuning(), options.collective, nbytes, where).name
        for row in found:
            marks = [*(["best"] if row is found[0] else []), *(["hocket's choice"] if row.algorithm == own else [])]
            print(line(row) + (f"  <- {', '.join(marks)}" if marks else ""), flush=True)
        rows += found
        chosen += [row for row in found if row.algorithm == own]
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"topology": options.topology, "rows": [record(row) for row in rows]}, file, indent=1)
    if options.markdown:
        with open(options.markdown, "w") as file:
            file.write(f"{options.collective} on `{options.topology}`, us\n\n    {_command(options)}\n" + growth(rows))
    if options.plot and rows:
        from hocket.bench.harness.plot import plot_simulated

        plot_simulated(options.plot, _title(options, rows), rows, chosen)
    return 0 if len(rows) == len(cases) else 1


def _title(options: argparse.Namespace, rows: Sequence[Prediction]) -> str:
    """The title of the picture: what all rows have in common."""
    lengths, sizes = {int(row.nbytes) for row in rows}, {row.size for row in rows}
    of = f" of {human(*lengths)}" if len(lengths) == 1 else ""
    ranks = f"{min(sizes)} ranks " if len(sizes) == 1 else ""
    return f"{options.collective}{of} on {ranks}{'in ' if ranks else ''}{options.topology}"


def _command(options: argparse.Namespace) -> str:
    """The line that makes such a table."""
    words = ["hocket simulate", options.collective, "--size", options.size, "--bytes", options.bytes]
    words += ["--algorithm", options.algorithm] if options.algorithm != "all" else []
    return " ".join([*words, "--topology", str(options.topology), "--markdown", options.markdown])


def _cases(options: argparse.Namespace, there: Topology) -> list[tuple[Algorithm, int, int]]:
    """(algorithm, ranks, bytes); what makes no sense is refused before anything is simulated."""
    sizes, lengths = [_ranks(text) for text in options.size.split(",")], [*map(parse_size, options.bytes.split(","))]
    for size in sizes:
        there.check(size)
        if not 0 <= options.root < size:
            raise ArgumentError(f"--root {options.root} is not one of {size} ranks")
    return [
        (_algorithm(options.collective, name, there, size), size, nbytes)
        for size in sizes
        for nbytes in lengths
        for name in _names(options, there, size)
    ]


def _ranks(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise ArgumentError(f"--size {text!r}: expected numbers of ranks, like 4,8,16")
    return int(text)


def _names(options: argparse.Namespace, there: Topology, size: int) -> Sequence[str]:
    if options.algorithm != "all":
        return [*dict.fromkeys(options.algorithm.split(","))]
    levels = options.collective in STAGES and 1 < len(there.groups(size)) < size
    return [*names(options.collective), *(["hierarchical"] if levels else [])]


def _algorithm(collective: str, name: str, there: Topology, size: int) -> Algorithm:
    return hierarchical(collective, there.groups(size)) if name == "hierarchical" else get(collective, name)


def busbw(row: Prediction) -> float:
    """GB/s, as `hocket bench` defines it."""
    return algbw(row) * COLLECTIVES[row.collective].factor(row.size)


def algbw(row: Prediction) -> float:
    """GB/s."""
    return row.nbytes / row.seconds / 1e9 if row.seconds else 0.0


def record(row: Prediction) -> dict[str, Any]:
    """The row as JSON; names as in `hocket bench --json`."""
    return {
        "collective": row.collective, "algorithm": row.algorithm, "ranks": row.size, "bytes": row.nbytes,
        "time_us": row.seconds * 1e6, "algbw_gbs": algbw(row), "busbw_gbs": busbw(row), "messages": row.messages,
        "sent_most": row.sent, "busiest": row.busiest, "share": row.share, "segments": row.segments,
        "simulated": row.simulated,
    }  # fmt: skip


def header() -> str:
    """Two lines: names and units."""
    named = "".join(f"{name:>{width}}" for name, _, width in COLUMNS)
    units = "".join(f"{unit:>{width}}" for _, unit, width in COLUMNS)
    return f"#{named}  busiest link\n#{units}  (part of the time)"


def line(row: Prediction) -> str:
    """One row of the table."""
    cells = (
        row.algorithm, row.size, f"{row.nbytes:.0f}", micro(row.seconds), f"{algbw(row):.3f}", f"{busbw(row):.3f}",
        row.messages, f"{row.sent:.0f}",
    )  # fmt: skip
    text = "".join(f"{cell:>{width}}" for cell, (_, _, width) in zip(cells, COLUMNS, strict=True))
    return f" {text}  {row.busiest or '-'} ({row.share:.0%})"


def growth(rows: Sequence[Prediction]) -> str:
    """Markdown: how the time of each algorithm grows with the ranks, a table for each number of bytes."""
    text = ""
    for nbytes in dict.fromkeys(row.nbytes for row in rows):
        times = {(row.algorithm, row.size): micro(row.seconds) for row in rows if row.nbytes == nbytes}
        sizes = sorted({size for _, size in times})
        text += f"\n{human(int(nbytes))}\n\n| ranks | {' | '.join(map(str, sizes))} |\n|---{'|---' * len(sizes)}|\n"
        for name in dict.fromkeys(name for name, _ in times):
            text += f"| {name} | " + " | ".join(times.get((name, size), "") for size in sizes) + " |\n"
    return text


if __name__ == "__main__":
    sys.exit(main())
