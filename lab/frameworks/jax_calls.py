"""hocket inside JAX beside what else there is on CPUs: allreduce of float32 in compiled programs of two ranks.

    python -m hocket.lab.frameworks.jax_calls

    hocket       hocket.jax.allreduce
    io_callback  the same call of hocket's, through jax.experimental.io_callback(ordered=True)
    gloo         jax.lax.psum in shard_map over both processes, with JAX's own Gloo collectives
    mpi4jax      mpi4jax.allreduce, if it is installed; then mpirun starts the ranks

Programs of one call, with all that JAX does to start one, and programs that make 20 in a loop.  All take turns in the
same processes (A B C A B C ...).  In each block the slower rank's mean time of a call counts; the table has medians of
the blocks, in microseconds.
"""

from __future__ import annotations

import importlib.util
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import hocket
from hocket.arguments import human
from hocket.system.cores import processor
from hocket.system.machine import free_port

SIZES = ((8, 60), (64 << 10, 40), (1 << 20, 10), (16 << 20, 2))
"""Bytes, and how often a block runs a program of one call; a program with a loop runs a quarter as often."""
LOOP = 20
BLOCKS = 9
Call = Callable[[Any], Any]


def rivals(comm: hocket.Communicator) -> dict[str, tuple[Call, Call]]:
    """The calls of each rival: the mean of an array over the ranks, inside a program; and what makes a program of a
    function."""
    import jax
    from jax.experimental import io_callback
    from jax.sharding import PartitionSpec

    import hocket.jax

    def shape(x: Any) -> Any:
        return jax.ShapeDtypeStruct(x.shape, x.dtype)

    def mean(x: Any) -> Any:
        return comm.allreduce(np.array(x), "avg")

    mesh = jax.make_mesh((2,), ("ranks",))

    def sharded(function: Call) -> Call:
        spec = PartitionSpec("ranks")
        program = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
        sharding = jax.sharding.NamedSharding(mesh, spec)
        known: dict[int, Any] = {}

        def run(x: Any) -> Any:
            if x.size not in known:
                known[x.size] = jax.make_array_from_process_local_data(sharding, np.asarray(x))
            return program(known[x.size])

        return run

    found: dict[str, tuple[Call, Call]] = {
        "hocket": (lambda x: hocket.jax.allreduce(x, "avg"), jax.jit),
        "io_callback": (lambda x: io_callback(mean, shape(x), x, ordered=True), jax.jit),
        "gloo": (lambda x: jax.lax.pmean(x, "ranks"), sharded),
    }
    if importlib.util.find_spec("mpi4jax"):
        import mpi4jax
        from mpi4py import MPI

        found["mpi4jax"] = (lambda x: mpi4jax.allreduce(x, MPI.SUM) / 2, jax.jit)
    return found


def block(comm: hocket.Communicator, program: Call, x: Any, times: int) -> float:
    """Seconds for each run on the slower rank."""
    import jax

    jax.block_until_ready(program(x))
    comm.barrier()
    start = time.perf_counter()
    for _ in range(times):
        jax.block_until_ready(program(x))
    return float(comm.allreduce(np.array((time.perf_counter() - start) / times), "max"))


def measured(comm: hocket.Communicator, programs: dict[str, Call], x: Any, times: int) -> dict[str, float]:
    """Medians, in seconds."""
    found: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(BLOCKS):
        for name, program in programs.items():
            found[name].append(block(comm, program, x, times))
    return {name: statistics.median(each) for name, each in found.items()}


def looped(call: Call) -> Call:
    import jax

    return lambda x: jax.lax.fori_loop(0, LOOP, lambda i, y: call(y), x)


def rank(port: str) -> None:
    """One of the two."""
    import jax
    import jax.numpy as jnp

    comm = hocket.init()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, comm.rank)
    known = rivals(comm)
    if comm.rank == 0:
        mpi = sys.modules.get("mpi4py.MPI")
        library = f", mpi4jax on {mpi.Get_library_version().split(',')[0]}" if mpi else ""
        print(f"{processor()}, jax {jax.__version__}{library}\n")
        print(f"| allreduce, two ranks | {' | '.join(known)} |\n|---|{'---|' * len(known)}")
    for nbytes, times in SIZES:
        x = jnp.ones(nbytes // 4, jnp.float32)
        single = measured(comm, {name: wrap(call) for name, (call, wrap) in known.items()}, x, times)
        loops = {name: wrap(looped(call)) for name, (call, wrap) in known.items()}
        inside = measured(comm, loops, x, max(1, times // 4))
        if comm.rank == 0:
            for what, row, count in (("one in a program", single, 1), (f"{LOOP} in a loop, each", inside, LOOP)):
                cells = " | ".join(f"{seconds / count * 1e6:.1f}" for seconds in row.values())
                print(f"| {human(nbytes)}, {what} | {cells} |", flush=True)


def main() -> None:
    if len(sys.argv) > 1:
        rank(sys.argv[1])
        return
    launcher = [sys.executable, "-m", "hocket", "run", "-n", "2", "--no-prefix", "--"]
    if importlib.util.find_spec("mpi4jax"):
        launcher = [shutil.which("mpirun") or "mpirun", "-n", "2", sys.executable]
    sys.exit(subprocess.run([*launcher, "-m", "hocket.lab.frameworks.jax_calls", str(free_port()[1])]).returncode)


if __name__ == "__main__":
    main()
