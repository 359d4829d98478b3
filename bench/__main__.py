"""`hocket bench allreduce -n 4`: how fast is a collective, beside other libraries and in nccl-tests' words?

Three ways to start: `hocket bench ... -n 4` starts the ranks itself; `hocket run -n 4 -- python -m hocket.bench ...`
and `mpirun -n 4 python -m hocket.bench ...` make every process of the job a rank; under mpirun with mpi4py that MPI's
own numbers stand beside ours.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any, TypeVar

from hocket.algorithms.language.contract import reduces
from hocket.bench.harness.measure import Effort, measure
from hocket.bench.harness.table import Row, header, line
from hocket.bench.harness.team import Joined, Started, Team
from hocket.bench.harness.worker import Subject
from hocket.bench.rivals import launchers
from hocket.bench.rivals.ours import Ours
from hocket.collectives.choice import declared
from hocket.collectives.choice.setting import algorithms
from hocket.collectives.job.place import launched
from hocket.collectives.measuring.cases import COLLECTIVES, Case, case, numpy_dtype, parse_size, sizes
from hocket.conformance.oracle import UFUNCS
from hocket.errors import ArgumentError, Error
from hocket.kernels.dtypes import by_name
from hocket.kernels.ops import lookup

Parsed = TypeVar("Parsed")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="hocket bench", description="Measure a collective.", allow_abbrev=False)
    add = made.add_argument
    add("collective", choices=list(COLLECTIVES), metavar="COLLECTIVE", help=", ".join(COLLECTIVES))
    add("-n", "--ranks", type=int, metavar="N", help="ranks to start on this machine (2; under a launcher: its ranks)")
    add("-b", "--begin", type=_argument(parse_size), metavar="SIZE", help="smallest size (8; with --codec 16M)")
    add("-e", "--end", type=_argument(parse_size), metavar="SIZE", help="largest size (64M; with --codec 16M)")
    add("-f", "--factor", type=float, default=2.0, metavar="F", help="from one size to the next (2)")
    add("--dtype", default="float32", help="float32, int64, bfloat16, ...")
    add("--op", default="sum", help="sum, prod, min, max, avg, ...")
    add("--root", type=int, default=0, help="of broadcast, reduce, gather and scatter (0)")
    add("--algorithm", metavar="A", help="instead of the choice by size")
    add("--transport", metavar="T", help="shm, tcp, ...: use only this one")
    add("--check", action="store_true", help="count wrong elements, against NumPy (outside of the timed part)")
    add("--peers", default="", metavar="P,...", help="beside these: gloo, openmpi, mpich, impi (or mpich=/prefix)")
    add("--time", type=float, default=0.5, metavar="S", help="seconds for one size and library (0.5)")
    add("--blocks", type=int, default=5, metavar="B", help="timed blocks, of which the median counts (5)")
    add("--iters", type=int, metavar="I", help="calls in a block, instead of as many as fit the time")
    add("--codec", metavar="C,...", help="allreduce by these, beside float32 and fp16: int8, auto, powersgd:4, ...")
    add("--link", metavar="R,...", help="with --codec: two hosts with a cable of 100Mbit, ... (root); or none")
    add("--json", metavar="FILE", help="write machine, versions and all numbers")
    add("--plot", metavar="PNG", help="draw time and bandwidth over size (needs matplotlib)")
    return made


def _argument(parse: Callable[[str], Parsed]) -> Callable[[str], Parsed]:
    """argparse shows the reasons of its own exception only."""

    def parsed(text: str) -> Parsed:
        try:
            return parse(text)
        except ArgumentError as why:
            raise argparse.ArgumentTypeError(str(why)) from None

    return parsed


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line behind `hocket bench`.  0; 1 if elements were wrong or a run failed; 2: bad arguments."""
    made = parser()
    declared.load()
    options = made.parse_args(argv)
    try:
        if options.codec or options.link:
            return _link(options)
        size = launched(options.ranks)
        if size is None:
            return _start(options)
        if options.peers or options.ranks not in (None, size):
            raise ArgumentError(f"a launcher has started {size} ranks: omit -n and --peers")
        return _join(options)
    except ArgumentError as why:
        made.error(str(why))
    except Error as why:
        print(f"hocket bench: {why}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _link(options: argparse.Namespace) -> int:
    """Do codecs pay over links?"""
    from hocket.bench import link

    ranks = 4 if options.ranks is None else options.ranks
    codecs = options.codec or "int8,int4,auto"
    names, rates = link.checked(codecs, options.link or "none", options.collective, ranks)
    end = options.end or max(options.begin or 0, link.USUAL)
    lengths = sizes(options.begin or min(end, link.USUAL), end, options.factor)
    link.run(names, rates, lengths, ranks, options.transport)
    return 0


def _cases(options: argparse.Namespace, size: int) -> list[Case]:
    if not 0 <= options.root < size:
        raise ArgumentError(f"--root {options.root} is not one of the {size} ranks")
    if options.blocks < 1 or (options.iters is not None and options.iters < 1) or options.time <= 0:
        raise ArgumentError("--blocks, --iters and --time must be positive")
    where = "allreduce" if options.collective == "barrier" else options.collective
    if options.algorithm and options.algorithm not in algorithms(where):
        known = ", ".join(algorithms(where))
        raise ArgumentError(f"--algorithm {options.algorithm}: {where} has no algorithm of this name; known: {known}")
    if options.op != "avg" and reduces(options.collective):
        lookup(options.op, by_name(options.dtype))
    for file in filter(None, (options.json, options.plot)):
        if not os.access(os.path.dirname(os.path.abspath(file)), os.W_OK) or os.path.isdir(file):
            raise ArgumentError(f"{file} cannot be written")
    if options.check and options.op not in UFUNCS:
        raise ArgumentError(f"--check cannot check op {options.op!r}; it can check {', '.join(UFUNCS)}")
    if options.plot and (options.collective == "barrier" or find_spec("matplotlib") is None):
        raise ArgumentError("--plot needs a collective with sizes, and matplotlib (pip install matplotlib)")
    numpy_dtype(options.dtype)
    every = [0]
    if options.collective != "barrier":
        every = sizes(options.begin or 8, options.end or 1 << 26, options.factor)
    cases = [case(options.collective, size, n, options.dtype, options.op, options.root) for n in every]
    return list(dict.fromkeys(cases))  # several small sizes may round to the same count


def _start(options: argparse.Namespace) -> int:
    """This process is no rank: it starts all of them, and the peers'."""
    size = 2 if options.ranks is None else options.ranks
    if size < 1:
        raise ArgumentError(f"-n {size}: expected at least one rank")
    cases = _cases(options, size)
    names = [text.partition("=")[0] for text in options.peers.split(",") if text]
    if len(set(names)) < len(names):
        raise ArgumentError(f"--peers {options.peers} names a peer twice")
    settings = {"collective": options.collective, "transport": options.transport, "algorithm": options.algorithm}
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the stack ends the workers
    with ExitStack() as stack:
        peers = []
        for text in filter(None, options.peers.split(",")):
            try:
                peers.append(Started(text.partition("=")[0], size, launchers.peer(text, size)))
                stack.callback(peers[-1].close)
            except Error as why:
                if text.partition("=")[0] not in launchers.PEERS:
                    raise
                print(f"# not measured: {why}", file=sys.stderr)
        ours = Started("hocket", size, launchers.ours(size, settings))
        stack.callback(ours.close)
        return _report(options, cases, ours, peers)


def _join(options: argparse.Namespace) -> int:
    """This process is one of the ranks; rank 0 prints."""
    ours = Ours(options.collective, options.transport, options.algorithm)
    cases = _cases(options, ours.size)
    teams = [Joined(ours.comm, each) for each in (ours, *_own_mpi(ours))]
    if ours.rank:
        Joined.serve(teams)
        return 0
    try:
        return _report(options, cases, teams[0], teams[1:])
    finally:
        teams[0].close()


def _own_mpi(ours: Ours) -> list[Subject]:
    """Under mpirun: that MPI, called directly, in the same processes and in turns with us."""
    if ours.comm.world.mpi is None:
        return []
    from hocket.bench.rivals.mpi import MpiSubject

    return [MpiSubject()]


def _report(options: argparse.Namespace, cases: Sequence[Case], ours: Team, peers: Sequence[Team]) -> int:
    from hocket.bench.harness import environment

    before = environment.describe()
    effort = Effort(options.time, options.blocks, options.iters, options.check)
    names = [team.name for team in peers]
    cores, load = before["usable_cores"], before["load"][0]
    print(f"# {options.collective} on {cases[0].size} ranks; {cores} usable cores, load {load:.2f}")
    for team in (ours, *peers):
        print(f"# {team.name}: {team.about}")
    print(header(names), flush=True)
    rows: list[Row] = []
    for row in measure(cases, ours, peers, effort):
        print(line(row, names), flush=True)
        rows.append(row)
    _write(options, before, {team.name: team.about for team in peers}, rows)
    wrong = sum(row.wrong or 0 for row in rows)
    if options.check:
        print(f"# Out of bounds values: {wrong} {'FAILED' if wrong else 'OK'}")
    return 1 if wrong else 0


def _write(options: argparse.Namespace, before: dict[str, Any], abouts: dict[str, str], rows: Sequence[Row]) -> None:
    if options.json:
        from hocket.bench.harness.environment import write

        write(options.json, before, abouts, rows)
    if options.plot:
        from hocket.bench.harness.plot import plot

        plot(options.plot, rows)


if __name__ == "__main__":
    sys.exit(main())
