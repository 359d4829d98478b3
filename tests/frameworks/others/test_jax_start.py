"""Where the ranks come from: jax.distributed, hocket run, mpirun; and the example."""

from __future__ import annotations

import os
import pathlib
import socket
import subprocess
import sys

import pytest

from support.worlds import PATH

ROOT = pathlib.Path(__file__).parents[3]
DISTRIBUTED = """
import sys
import jax, jax.numpy as jnp
rank, size = int(sys.argv[1]), int(sys.argv[2])
jax.distributed.initialize("127.0.0.1:" + sys.argv[3], size, rank)
import hocket.jax
from jax._src import distributed
for _ in range(2):                                      # again, on the same store
    comm = hocket.jax.init()
    assert (comm.rank, comm.size) == (rank, size)
    assert jax.jit(hocket.jax.allreduce)(jnp.ones(3)).tolist() == [size] * 3
    comm.barrier()
    assert distributed.global_state.client.key_value_dir_get("hocket/jax/") == []
    comm.close()
print("done", rank)
"""


@pytest.mark.parametrize("size", [2, 3])
def test_jax_distributed(size: int) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    env = {name: value for name, value in os.environ.items() if not name.startswith("HOCKET_")}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", DISTRIBUTED, str(rank), str(size), port],
            env={**env, "PYTHONPATH": PATH}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(size)
    ]  # fmt: skip
    try:
        for rank, process in enumerate(ranks):
            out, err = process.communicate(timeout=90)
            assert process.returncode == 0, err[-4000:]
            assert f"done {rank}" in out
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def test_without_jax_distributed_and_without_a_launcher() -> None:
    source = "import hocket.jax; print(hocket.jax.init().size, hocket.jax.allreduce(2.0))"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["1", "2.0"], done.stderr


def test_the_example() -> None:
    command = [sys.executable, "-m", "hocket", "run", "-n", "2", "--", str(ROOT / "examples/frameworks/jax_digits.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    accuracy = float(done.stdout.rpartition("accuracy ")[2].split()[0])
    assert accuracy > 0.9, done.stdout
