"""Which way do long messages go fastest: slots, reading, writing, both cores?  Beside an MPI, in the same processes.

    python -m hocket.lab.memory.ways [openmpi mpich impi=build/impi] [--what broadcast alltoall] [--sizes 4M 16M]
        [--ways slots reading writing "both cores"] [--seconds 3] [--touch] [--shared]

Two ranks, which each MPI's own launcher starts.  Each way as if it was the only one, and hocket as it chooses, in
blocks that alternate in an order drawn anew; the median of the blocks' times, in us, and of their ratios to the MPI's,
apart for cores that are near and far: an allreduce of 4 bytes takes up to, or more than, --far us.  Without `--ways`
those are shown that hocket tries where slots are fast.  `--touch`: each rank writes its input before each call and
reads its result after it, untimed.  `--shared`: hocket's arrays are those of hocket.shared_arrays; the MPI's are not.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy

import hocket
from hocket.arguments import human
from hocket.bench.rivals import launchers
from hocket.collectives.engine.queue import WAYS
from hocket.collectives.measuring.cases import parse_size
from hocket.system.cores import processor

TRAFFIC = {
    "broadcast": "one way", "pingpong": "one way", "sendrecv": "one way", "allreduce": "reduced", "allgather": "moved",
    "alltoall": "moved",
}  # fmt: skip
BLOCK, FEWEST, PINGS = 8e-3, 5, 200
"""Seconds of a block, about; blocks of each way, at least; calls that tell how far the cores are."""

Arrays = tuple[Any, Any]
Calls = dict[str, tuple[Callable[[], object], Arrays]]


def main(argv: Sequence[str] | None = None) -> int:
    made = argparse.ArgumentParser(prog="python -m hocket.lab.memory.ways", description=__doc__.split("\n")[0])
    made.add_argument("peers", nargs="*", default=["openmpi"], help="MPIs, as `hocket bench --against` names them")
    made.add_argument("--what", nargs="+", default=list(TRAFFIC), choices=TRAFFIC)
    made.add_argument("--sizes", nargs="+", default=["4M"], help="bytes of a message (4M)")
    every = sorted({way for ways in WAYS.values() for way in ways})
    made.add_argument("--ways", nargs="+", choices=every, help="those that are tried, where slots are fast")
    made.add_argument("--seconds", type=float, default=3.0, help="of each line (3)")
    made.add_argument("--far", type=float, default=0.8, metavar="US", help="near cores take less (0.8)")
    made.add_argument("--touch", action="store_true")
    made.add_argument("--shared", action="store_true")
    made.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = made.parse_args(argv)
    if options.rank:
        _measure(options)
        return 0
    print(f"{processor()}, load {os.getloadavg()[0]:.1f}", flush=True)
    for peer in options.peers:
        line, env = launchers.mpirun(peer, 2, False)
        given = ["--rank", peer, f"--seconds={options.seconds}", f"--far={options.far}"]
        given += [f"--{name}" for name in ("touch", "shared") if getattr(options, name)]
        given += ["--what", *options.what, "--sizes", *options.sizes]
        given += ["--ways", *options.ways] if options.ways else []
        ours = [sys.executable, "-m", "hocket.lab.memory.ways", *given]
        subprocess.run([*line, *ours], env={**os.environ, **env}, check=True)
    return 0


def _measure(options: argparse.Namespace) -> None:
    from mpi4py import MPI

    world, comm = MPI.COMM_WORLD, hocket.init(transport="shm")
    kinds = [nullcontext(), hocket.shared_arrays() if options.shared else nullcontext()]
    for what in options.what:
        ways = {way: _forced(comm, way) for way in options.ways or WAYS[TRAFFIC[what]]}
        for nbytes in map(parse_size, options.sizes):
            theirs, ours = (_arrays(what, nbytes, kind) for kind in kinds)
            calls = {"MPI": (_theirs(world, what, theirs), theirs)}
            calls |= {name: (_ours(on, what, ours), ours) for name, on in {"hocket": comm, **ways}.items()}
            blocks = _blocks(world, comm, calls, options)
            if comm.rank == 0:
                _show(f"{MPI.get_vendor()[0]}, {what} of {human(nbytes)}", list(calls), blocks, options)


def _forced(comm: hocket.Communicator, way: str) -> hocket.Communicator:
    """A communicator whose long messages go this way alone."""
    made = comm.dup()
    for queue in made.membership.queues.values():
        vars(queue)["weighs"] = lambda traffic, longest: ((way,), 1, way) if longest > 1 << 14 else ()
        vars(queue)["gathers_by_slots"] = lambda longest: False
    return made


def _arrays(what: str, nbytes: int, kind: Any) -> Arrays:
    """Arrays for what is sent, and for what comes; `nbytes` are a block's."""
    count = nbytes // 4
    with kind:
        x = numpy.ones(count * (2 if what == "alltoall" else 1), numpy.float32)
        if what in ("broadcast", "allreduce"):
            return x, x
        return x, numpy.ones(count * (1 if what in ("sendrecv", "pingpong") else 2), numpy.float32)


def _ours(comm: hocket.Communicator, what: str, arrays: Arrays) -> Callable[[], object]:
    x, y = arrays
    other = 1 - comm.rank
    return {
        "pingpong": _there_and_back(comm.rank, lambda: comm.send(x, other), lambda: comm.recv(y, other)),
        "broadcast": lambda: comm.broadcast(x, root=0),
        "sendrecv": lambda: comm.sendrecv(x, other, y, other),
        "allreduce": lambda: comm.allreduce(x),
        "allgather": lambda: comm.allgather(x, out=y),
        "alltoall": lambda: comm.alltoall(x, out=y),
    }[what]


def _theirs(world: Any, what: str, arrays: Arrays) -> Callable[[], object]:
    from mpi4py import MPI

    x, y = arrays
    other = 1 - world.rank
    return {
        "pingpong": _there_and_back(world.rank, lambda: world.Send(x, other), lambda: world.Recv(y, other)),
        "broadcast": lambda: world.Bcast(x, 0),
        "sendrecv": lambda: world.Sendrecv(x, other, recvbuf=y, source=other),
        "allreduce": lambda: world.Allreduce(MPI.IN_PLACE, x),
        "allgather": lambda: world.Allgather(x, y),
        "alltoall": lambda: world.Alltoall(x, y),
    }[what]


def _there_and_back(rank: int, send: Callable[[], object], recv: Callable[[], object]) -> Callable[[], object]:
    """A message of rank 0's, and one of the other's behind it."""
    return (lambda: (send(), recv())) if rank == 0 else (lambda: (recv(), send()))


def _blocks(
    world: Any, comm: hocket.Communicator, calls: Calls, options: argparse.Namespace
) -> list[list[float]]:
    """For each block the microseconds of an allreduce of 4 bytes, then of each call."""
    dice, small, blocks = random.Random(1), numpy.zeros(1, numpy.float32), list[list[float]]()
    for call, _ in calls.values():
        for _ in range(30):  # plans are made, and ways tried
            call()
    end = time.perf_counter() + options.seconds
    while world.bcast(time.perf_counter() < end or len(blocks) < FEWEST):
        begin = time.perf_counter()
        for _ in range(PINGS):
            comm.allreduce(small)
        row = dict.fromkeys(["", *calls], (time.perf_counter() - begin) / PINGS * 1e6)
        for name in dice.sample(list(calls), len(calls)):
            call, arrays = calls[name]
            row[name] = _block(world, call, arrays, options.touch)
        blocks.append(list(row.values()))
    return blocks


def _block(world: Any, call: Callable[[], object], arrays: Arrays, touch: bool) -> float:
    x, y = arrays
    x[:] = 0  # sums stay finite
    times = []
    for _ in range(max(5, min(200, int(BLOCK / (2e-6 + x.nbytes * 2e-10))))):
        if touch:
            x[::16] = 1
        world.Barrier()
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
        if touch:
            y[8::16].max()
    return float(numpy.median(times[2:])) * 1e6


def _show(title: str, names: list[str], blocks: list[list[float]], options: argparse.Namespace) -> None:
    rows = numpy.array(blocks)
    for where, some in (("near", rows[:, 0] <= options.far), ("far", rows[:, 0] > options.far)):
        if some.any():
            times, ratios = rows[some, 1:], rows[some, 1:] / rows[some, 1:2]
            middle = zip(names, numpy.median(times, axis=0), numpy.median(ratios, axis=0), strict=True)
            cells = [f"{name} {us:.0f} us {ratio:.2f}" for name, us, ratio in middle]
            how = f"{where}{', touched' * options.touch}{', shared' * options.shared}, {some.sum()} blocks"
            print(f"{title}, {how}: {'; '.join(cells)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
