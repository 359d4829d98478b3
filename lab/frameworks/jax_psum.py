"""JAX's own collectives on hocket, Gloo and MPICH, and on a library that returns at once: what XLA takes by itself.

    python -m hocket.lab.frameworks.jax_psum [--blocks 3]

A process has one of them for good, so each block starts the ranks of each in turn (A B C D A B C D ...).  In each the
slower rank's median counts; the table has the medians of the blocks, in microseconds a call.  MPICH is the wheel's, by
the same door as hocket: a library that passes XLA's calls on.  It is built here, and left out without `mpich` and cc.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hocket.system.cores import processor
from hocket.system.machine import free_port
from hocket.tools.rank import start
from hocket.xla import loading

ROUNDS = 7
Table = dict[str, float]


def rank(number: int, size: int, port: str) -> None:
    """One process of a block: prints its table."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    jax.distributed.initialize(f"127.0.0.1:{port}", size, number)
    mesh = Mesh(np.array(jax.devices()), "i")
    spread = NamedSharding(mesh, PartitionSpec("i"))

    def array(count: int) -> Any:
        return jax.make_array_from_process_local_data(spread, np.ones(count, np.float32))

    def program(body: Callable[[Any], Any]) -> Callable[[Any], Any]:
        spec = PartitionSpec("i")
        made: Callable[[Any], Any] = jax.jit(
            jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
        )
        return made

    def looped(times: int) -> Callable[[Any], Any]:
        return program(lambda a: jax.lax.fori_loop(0, times, lambda k, x: jax.lax.psum(x, "i") * 0.5, a))

    one = program(lambda tree: jax.tree.map(lambda a: jax.lax.psum(a, "i"), tree))
    table: Table = {}

    def measure(name: str, call: Callable[[Any], Any], x: Any, calls: int, times: int = 1) -> None:
        jax.block_until_ready(call(x))
        found = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            for _ in range(times):
                jax.block_until_ready(call(x))
            found.append((time.perf_counter() - began) / times / calls * 1e6)
        table[name] = statistics.median(found)

    if size == 2:
        measure("8 B, loop of 200", looped(200), array(2), 200)
        measure("8 B, a program of one", one, array(2), 1, 50)
        measure("64 KiB, loop of 100", looped(100), array(1 << 14), 100)
        measure("1 MiB, loop of 20", looped(20), array(1 << 18), 20)
        measure("16 MiB, loop of 4", looped(4), array(1 << 22), 4)
        measure("tree of 20 x 1 KiB", one, [array(256) for _ in range(20)], 1, 20)
    else:
        swap = lambda k, a: jax.lax.all_to_all(a, "i", 0, 0, tiled=True)  # noqa: E731
        loop = program(lambda a: jax.lax.fori_loop(0, 20, swap, a))
        measure("all_to_all of 1 MiB, 4 ranks", loop, array(1 << 18), 20)
    leave(number, table)


def leave(number: int, table: Table) -> None:
    """The end of a rank."""
    from jax._src import distributed

    print(json.dumps(table), flush=True)
    distributed.global_state.client.wait_at_barrier("hocket/bench", 60_000)  # else JAX ends who is still at it
    time.sleep(0 if number else 0.5)  # process 0 has JAX's coordinator, and the others are ended where that is gone
    os._exit(0)  # a library that returns at once cannot end in order


def doors(folder: str) -> dict[str, str]:
    """The libraries of each, built in `folder`; "": JAX's own."""
    source = Path(__file__).with_name("jax_doors.h").read_text()
    lines = [
        f"const word {name} = {0 if name.endswith('_SUCCESS') else k};" if value else f"REFUSE({name})"
        for k, (name, value) in enumerate(loading.table().items(), 1)
        if f"int {name}(" not in source
    ]
    (Path(folder) / "names.h").write_text("\n".join(lines))
    (Path(folder) / "doors.c").write_text(source)
    found = {"hocket": loading.LIBRARY, "Gloo": ""}
    prefix = sysconfig.get_path("data")
    for name, flags in {
        "MPICH": ["-DMPICH", f"-I{prefix}/include", f"-L{prefix}/lib", "-lmpi", f"-Wl,-rpath,{prefix}/lib"],
        "nothing": [],
    }.items():
        file = f"{folder}/{name}.so"
        command = ["cc", "-O2", "-w", "-shared", "-fPIC", "-I", folder, "-o", file, f"{folder}/doors.c", *flags]
        if shutil.which("cc") and subprocess.run(command, capture_output=True).returncode == 0:
            found[name] = file
    return found


def block(name: str, library: str, size: int, program: str = "hocket.lab.frameworks.jax_psum") -> Table:
    """The slower rank's times of a program that takes --port, --size and --rank, and prints a table."""
    chosen = {loading.FILE: library, loading.CHOICE: "mpi"} if library else {loading.CHOICE: "gloo"}
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "RANKS": str(size), "OMP_NUM_THREADS": "1", **chosen}
    command = [sys.executable, "-m", program, "--port", str(free_port()[1]), "--size", str(size)]
    if name == "MPICH":
        starts = [[shutil.which("mpiexec", path=sysconfig.get_path("scripts")) or "mpiexec", "-n", str(size), *command]]
    else:
        starts = [[*command, "--rank", str(number)] for number in range(size)]
    ranks = [start(each, env, stdout=subprocess.PIPE, text=True) for each in starts]
    tables = [json.loads(line) for each in ranks for line in re.findall(r"\{[^{}]+\}", each.communicate()[0])]
    assert len(tables) == size, f"{name}: a rank has failed"
    return {row: max(each[row] for each in tables) for row in tables[0]}


def blocks(doc: str | None, rank: Callable[[int, int, str], None]) -> int:
    """The number of blocks that are wanted.  In a process of a block, do what a rank does, and end."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--rank", type=int, default=int(os.environ.get("PMI_RANK", "0")), help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, default=2, help=argparse.SUPPRESS)
    parser.add_argument("--port", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.port:
        rank(options.rank, options.size, options.port)
        sys.exit(0)
    return int(options.blocks)


def main() -> None:
    count = blocks(__doc__, rank)
    with tempfile.TemporaryDirectory() as folder:
        ways = doors(folder)
        found: dict[str, dict[str, list[float]]] = {}
        for _ in range(count):
            for size in (2, 4):
                for name, library in ways.items():
                    for row, value in block(name, library, size).items():
                        found.setdefault(row, {}).setdefault(name, []).append(value)
    print(f"microseconds a call; {processor()}, medians of {count} blocks")
    print(f"| | {' | '.join(ways)} |\n|---|{'---|' * len(ways)}")
    for row, each in found.items():
        print(f"| {row} | {' | '.join(f'{statistics.median(each[name]):.1f}' for name in ways)} |")


if __name__ == "__main__":
    main()
