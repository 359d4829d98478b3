"""The time of messages, beside an MPI in the same processes.

    python -m hocket.bench.messages [openmpi mpich impi=build/impi] [--seconds 3] [--transport tcp] [--sizes 8 65536]

Two ranks, which each MPI's own launcher starts.  Ping-pong (there and back) and sendrecv of bytes, blocking, hocket and
the MPI in turns of 0.3 ms; medians of the turns, and their ratio.  `--transport tcp`: both over TCP.
`--quantile 0.1`: of the turns not the median, but what the best tenth of them took at most, beside other work.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy

import hocket
from hocket.bench.rivals import launchers
from hocket.system.cores import processor

SIZES = (8, 2048, 65536, 1 << 20)
TURN = 3e-4
"""Seconds of one turn."""

Call = Callable[[], object]


def main(argv: Sequence[str] | None = None) -> int:
    made = argparse.ArgumentParser(prog="hocket.bench.messages", description=__doc__.split("\n")[0], allow_abbrev=False)
    made.add_argument("peers", nargs="*", default=["openmpi"], help="MPIs, as `hocket bench --against` names them")
    made.add_argument("--seconds", type=float, default=3.0, help="of each line (3)")
    made.add_argument("--transport", choices=("shm", "tcp"), default="shm", help="of hocket and of the MPI (shm)")
    made.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="bytes of a message (8 2048 65536 1048576)")
    made.add_argument("--quantile", type=float, default=0.5, help="of the turns (0.5)")
    made.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = made.parse_args(argv)
    if options.rank:
        _measure(options)
        return 0
    print(f"| {processor()}, 2 ranks, {options.transport} | hocket, us | MPI, us | ratio |", flush=True)
    print("|---|---|---|---|", flush=True)
    for peer in options.peers:
        line, env = launchers.mpirun(peer, 2, options.transport == "tcp")
        given = [f"--{name}={getattr(options, name)}" for name in ("seconds", "transport", "quantile")]
        ours = [sys.executable, "-m", "hocket.bench.messages", "--rank", peer, *given]
        subprocess.run([*line, *ours, "--sizes", *map(str, options.sizes)], env={**os.environ, **env}, check=True)
    return 0


def _measure(options: argparse.Namespace) -> None:
    """On both ranks; rank 0 prints the rows."""
    from mpi4py import MPI

    world, comm = MPI.COMM_WORLD, hocket.init(transport=options.transport)
    for nbytes in options.sizes:
        for name, (ours, theirs) in _calls(comm, world, nbytes).items():
            turns, end = [], time.perf_counter() + options.seconds
            while world.bcast(time.perf_counter() < end):
                turns.append((_turn(world, ours), _turn(world, theirs)))
            if comm.rank == 0:
                mine, other = numpy.quantile(turns, options.quantile, axis=0) * 1e6
                what = f"{options.peers[0].partition('=')[0]}: {name} {nbytes:,} B"
                print(f"| {what} | {mine:.2f} | {other:.2f} | {mine / other:.2f} |", flush=True)


def _calls(comm: hocket.Communicator, world: Any, nbytes: int) -> dict[str, tuple[Call, Call]]:
    x, out, other = numpy.zeros(nbytes, "u1"), numpy.zeros(nbytes, "u1"), 1 - comm.rank

    def ping_pong(send: Callable[..., object], recv: Callable[..., object]) -> Call:
        first, second = ((send, x), (recv, out))[:: 1 if comm.rank == 0 else -1]
        return lambda: (first[0](first[1], other), second[0](second[1], other))

    return {
        "ping-pong": (ping_pong(comm.send, comm.recv), ping_pong(world.Send, world.Recv)),
        "sendrecv": (
            lambda: comm.sendrecv(x, other, out, other),
            lambda: world.Sendrecv(x, other, recvbuf=out, source=other),
        ),
    }


def _turn(world: Any, call: Call) -> float:
    """Seconds of one call.  How many make a turn is what rank 0 finds."""
    begin = time.perf_counter()
    for _ in range(3):
        call()
    count = int(world.bcast(max(3, TURN * 3 / (time.perf_counter() - begin))))
    world.Barrier()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count


if __name__ == "__main__":
    sys.exit(main())
