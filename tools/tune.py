"""`hocket tune`: measure every algorithm on this machine and keep it for later jobs; `--check`: are the choices good?

Without a launcher it starts the ranks itself, for each number of them that -n names; under `hocket run`, mpirun or
torchrun the job's ranks are measured, over the hosts and transports that they use.  Rank 0 writes the file.

Later jobs choose by what is kept.  What was measured beside other work is noise: it is measured again, and not kept.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence

import hocket
from hocket.arguments import human
from hocket.bench.harness.table import micro
from hocket.collectives.choice import cache
from hocket.collectives.choice.choose import choose
from hocket.collectives.choice.fabric import candidates
from hocket.collectives.choice.tuning import Tuning
from hocket.collectives.job.place import is_first, launched
from hocket.collectives.measuring import busy, measure
from hocket.collectives.measuring.cases import parse_size
from hocket.errors import ArgumentError, Error
from hocket.system.parent import die_with
from hocket.tools.run_options import MOST_RANKS

RANKS = "2,4,8"
BETWEEN = (32, 2 << 10, 8 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20)
"""Sizes for --check: between those that are measured."""
COLUMNS = ("collective", "bytes", "chosen", "us", "why", "best", "us", "chosen / best")
LOOK = 0.5
"""Seconds for which it looks how busy the machine is, before it measures."""
TRIES = 3
"""The number of measurements, as long as the machine is busy."""
NEAR = 1.1
"""A choice is good if it takes at most so many times the best algorithm's time."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="hocket tune", description="Measure every algorithm here.", allow_abbrev=False)
    add = made.add_argument
    add("-n", "--ranks", metavar="N,...", help=f"numbers of ranks to start on this machine ({RANKS})")
    add("--transport", metavar="T", help="shm, tcp, ...: over this one")
    add("--collectives", metavar="C,...", help="default all")
    add("--sizes", metavar="S,...", help="bytes of a rank's whole vector (8 to 16M)")
    add("--seconds", type=float, default=10.0, metavar="S", help="about how long for each number of ranks (10)")
    add("--file", metavar="FILE", help="where it is kept (the cache folder, by this machine)")
    add("--busy", action="store_true", help="keep the times even if other work disturbed the measuring")
    add("--check", action="store_true", help="keep nothing: measure, and show what is chosen beside the best")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.  0; 1 if a run failed, or kept nothing as the machine was busy; 2: bad arguments."""
    made = parser()
    words = list(sys.argv[1:] if argv is None else argv)
    options = made.parse_args(words)
    try:
        among = launched(None) is not None
        try:
            collectives, sizes = _asked(options)
        except ArgumentError:
            if among and not is_first():
                return 2  # rank 0 says it for all
            raise
        if among:
            return _join(options, collectives, sizes)
        return max(_start(n, words) for n in _rank_counts(options.ranks or RANKS))
    except ArgumentError as why:
        made.error(str(why))
    except Error as why:
        print(f"hocket tune: {why}", file=sys.stderr)
        return 1


def _asked(options: argparse.Namespace) -> tuple[Sequence[str], Sequence[int]]:
    """The collectives and sizes of the command line; what makes no sense is refused before anything is started."""
    collectives = options.collectives.split(",") if options.collectives else measure.TUNED
    usual = BETWEEN if options.check else measure.SIZES
    sizes = [parse_size(s) for s in options.sizes.split(",")] if options.sizes else usual
    measure.check(collectives, sizes, options.seconds)
    return collectives, sizes


def _rank_counts(text: str) -> list[int]:
    found = [int(n) if n.isdecimal() else 0 for n in text.split(",")]
    if min(found) < 1 or max(found) > MOST_RANKS:
        raise ArgumentError(f"-n {text}: expected numbers of ranks, 1 to {MOST_RANKS}, with commas between")
    return found


def _start(ranks: int, words: list[str]) -> int:
    run = [sys.executable, "-m", "hocket", "run", "-n", str(ranks), "--no-prefix", "--"]
    command = [*run, sys.executable, "-m", "hocket.tools.tune", *words]
    return subprocess.run(command, check=False, preexec_fn=die_with(os.getpid())).returncode


def _join(options: argparse.Namespace, collectives: Sequence[str], sizes: Sequence[int]) -> int:
    """This process is one of the ranks; rank 0 prints and writes."""
    path = options.file or cache.place()
    with hocket.init(transport=options.transport) as comm:
        _quiet(comm)
        if options.check:
            return _check(comm, collectives, sizes, options.seconds)
        found, disturbed = _measured(comm, collectives, sizes, options)
        if disturbed and not options.busy:
            return int(comm.rank == 0)  # a launcher ends the job for it: not before rank 0 has told
        if comm.rank == 0:
            cache.store(path, _kept(path) + found)
            print(f"# {comm.membership.main.layout.text}: {len(found.points)} points measured, kept in {path}")
            _changes(comm, found)
            if found.reads:
                print(found.reads.words)
    return 0


def _measured(
    comm: hocket.Communicator, collectives: Sequence[str], sizes: Sequence[int], options: argparse.Namespace
) -> tuple[Tuning, str]:
    """The last measurement, and in words what disturbed it ("": nothing).  Rank 0 prints what disturbed each one."""
    for left in (0,) if options.busy else reversed(range(TRIES)):
        found, disturbed = measure.measured(comm, collectives, sizes, options.seconds)
        if not disturbed:
            break
        if comm.rank == 0 and left:
            print(f"# {disturbed}: measuring again", flush=True)
        elif comm.rank == 0:
            usual = "nothing is kept; run it when the machine is idle, or with --busy"
            kept = "kept all the same" if options.busy else usual
            print(f"# {comm.membership.main.layout.text}: {disturbed}: {kept}", file=sys.stderr, flush=True)
    return found, disturbed


def _quiet(comm: hocket.Communicator) -> None:
    """Before anything is measured, say if the machine is busy: whoever sees it may end the other work, or this."""
    comm.barrier()
    before = busy.look()
    time.sleep(LOOK)
    disturbed = busy.sentence(*busy.taken(comm, before))
    if disturbed and comm.rank == 0:
        print(f"# {disturbed} (load {os.getloadavg()[0]:.2f})", flush=True)


def _kept(path: str) -> Tuning:
    """The content of the file; nothing if it is spoilt, as it is about to be written anew."""
    try:
        return cache.load(path)
    except ArgumentError as why:
        print(f"# {path} is replaced: {why}", file=sys.stderr)
        return Tuning()


def _changes(comm: hocket.Communicator, found: Tuning) -> None:
    """Print where measuring changes the choice."""
    queue = comm.membership.main
    for p in found.points:
        usual = choose(Tuning(), p.collective, p.nbytes, queue.layout).name
        chosen = choose(found, p.collective, p.nbytes, queue.layout).name
        if chosen != usual:
            gain = f"{micro(p.seconds[chosen])} us instead of {micro(p.seconds[usual])}"
            print(f"{p.collective} {human(p.nbytes)}: {chosen} instead of {usual}, {gain}")


def _check(comm: hocket.Communicator, collectives: Sequence[str], sizes: Sequence[int], seconds: float) -> int:
    queue, share = comm.membership.main, seconds / (len(collectives) * len(sizes))
    good = points = 0
    if comm.rank == 0:
        print(f"\n{queue.layout.text}\n\n| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    for name in collectives:
        able = list(candidates(name, queue.layout))
        for nbytes in sizes:
            tuning = comm.tuning
            found, real = measure.times(comm, name, nbytes, able, share)
            comm.retune(tuning)
            choice = choose(tuning, name, real, queue.layout)
            best = min(found, key=found.__getitem__)
            ratio = found[choice.name] / found[best]
            good, points = good + (ratio <= NEAR), points + 1
            if comm.rank == 0:
                print(f"| {name} | {human(real)} | {choice.name} | {micro(found[choice.name])} | {choice.why} "
                      f"| {best} | {micro(found[best])} | {ratio:.2f} |", flush=True)  # fmt: skip
    if comm.rank == 0:
        print(f"\n{good} of {points} choices are within {NEAR - 1:.0%} of the best")
    return 0


if __name__ == "__main__":
    sys.exit(main())
