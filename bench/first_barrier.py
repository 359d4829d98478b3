"""Seconds until all ranks of a job have met, beside MPIs.

    python -m hocket.bench.first_barrier [openmpi mpich impi=build/impi] [-n 16] [--turns 5] [--numpy]
    ... --hosts a:8,b:8 --agent "ssh -F config" [openmpi]          on other hosts, both by the same ssh

From the launcher's start to its end; the program meets the others, waits for all in one barrier, and ends.  Each turn
starts every launcher once: `hocket run`, `hocket run --no-fork`, and each MPI's with mpi4py.  Medians of the turns, in
seconds and in seconds of CPU time, and their ratio to `hocket run`'s.  `--numpy`: MPI's programs import NumPy, too.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

import numpy

from hocket.bench.rivals import launchers
from hocket.system.cores import processor

OURS = "import hocket; comm = hocket.init(); comm.barrier(); comm.close()"
MPI = "from mpi4py import MPI; MPI.COMM_WORLD.Barrier()"


def main(argv: Sequence[str] | None = None) -> int:
    prog, what = "hocket.bench.first_barrier", __doc__.split("\n")[0]
    made = argparse.ArgumentParser(prog=prog, description=what, allow_abbrev=False)
    made.add_argument("peers", nargs="*", default=["openmpi"], help="MPIs, as `hocket bench --against` names them")
    made.add_argument("-n", type=int, default=16, metavar="N", help="ranks (16)")
    made.add_argument("--turns", type=int, default=5, help="(5)")
    made.add_argument("--hosts", help="as of `hocket run`; beside Open MPI alone")
    made.add_argument("--agent", default="ssh", help="(ssh)")
    made.add_argument("--numpy", action="store_true", help="MPI's programs import NumPy")
    options = made.parse_args(argv)
    commands = _commands(options)
    seconds = numpy.array([[_seconds(*command) for command in commands.values()] for _ in range(options.turns)])
    medians = numpy.median(seconds, axis=0)
    print(f"| {processor()}, {len(os.sched_getaffinity(0))} cores, {options.n} ranks | s | ratio | CPU s | ratio |")
    print("|---|---|---|---|---|")
    for name, (wall, cpu) in zip(commands, medians, strict=True):
        print(f"| {name} | {wall:.2f} | {medians[0][0] / wall:.2f} | {cpu:.2f} | {medians[0][1] / cpu:.2f} |")
    return 0


def _commands(options: argparse.Namespace) -> dict[str, tuple[list[str], Mapping[str, str]]]:
    """Name -> command and environment."""
    run = [sys.executable, "-m", "hocket", "run", "-n", str(options.n)]
    run += ["--hosts", options.hosts, "--agent", options.agent] if options.hosts else []
    found: dict[str, tuple[list[str], Mapping[str, str]]] = {"hocket run": ([*run, sys.executable, "-c", OURS], {})}
    if not options.hosts:
        found["hocket run --no-fork"] = ([*run, "--no-fork", sys.executable, "-c", OURS], {})
    program = f"import numpy; {MPI}" if options.numpy else MPI
    for peer in options.peers:
        line, env = launchers.mpirun(peer, options.n)
        if options.hosts:
            line += ["--prtemca", "plm_ssh_agent", options.agent, "--prefix", sys.prefix, "--host", options.hosts]
            line += [word for name in ("MPI4PY_LIBMPI", "OMP_NUM_THREADS") for word in ("-x", name)]
        found[peer.partition("=")[0]] = ([*line, sys.executable, "-c", program], {"OMP_NUM_THREADS": "1", **env})
    return found


def _seconds(command: list[str], env: Mapping[str, str]) -> tuple[float, float]:
    """Seconds of one job, and of its processes on CPUs."""
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env={**os.environ, **env}, check=True, timeout=600)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - begin, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


if __name__ == "__main__":
    sys.exit(main())
