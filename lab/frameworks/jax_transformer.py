"""A training step of a transformer of 5 million parameters, which jax.jit spreads over 2 and 4 ranks by its data.

    python -m hocket.lab.frameworks.jax_transformer [--blocks 3]

Blocks and libraries as in jax_psum.py.  Communication is the step's time less that with the library that returns at
once.  The losses of the first steps are compared with those of one process alone; with that library they differ.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from typing import Any

from hocket.lab.frameworks.jax_psum import Table, block, blocks, doors, leave
from hocket.system.cores import processor

WORDS, WIDTH, LAYERS, HEADS, LENGTH, BATCH = 1024, 256, 6, 4, 32, 8
COMPARED, STEPS = 3, 8
"""Steps whose losses are compared, and steps that are measured."""
NEAR = 1e-4
"""Losses may differ by so much of them: sums of float32 in another order."""


def parameters() -> dict[str, Any]:
    """5.0 million numbers."""
    import numpy as np

    rng = np.random.default_rng(0)

    def matrix(*shape: int) -> Any:
        return (rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)

    layers = [
        {
            "mix": matrix(WIDTH, 3 * WIDTH), "out": matrix(WIDTH, WIDTH),
            "up": matrix(WIDTH, 4 * WIDTH), "down": matrix(4 * WIDTH, WIDTH),
        }
        for _ in range(LAYERS)
    ]  # fmt: skip
    return {"words": matrix(WORDS, WIDTH), "places": matrix(LENGTH, WIDTH), "layers": layers}


def loss(weights: Any, tokens: Any) -> Any:
    """The mean surprise at each next token."""
    import jax
    import jax.numpy as jnp

    def normed(x: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)

    x = weights["words"][tokens[:, :-1]] + weights["places"]
    earlier = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    for layer in weights["layers"]:
        q, k, v = (each.reshape(*x.shape[:2], HEADS, -1) for each in jnp.split(normed(x) @ layer["mix"], 3, -1))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
        seen = jax.nn.softmax(jnp.where(earlier, scores, -1e9), -1)
        x = x + jnp.einsum("bhqk,bkhd->bqhd", seen, v).reshape(x.shape) @ layer["out"]
        x = x + jax.nn.gelu(normed(x) @ layer["up"]) @ layer["down"]
    logits = jax.nn.log_softmax(normed(x) @ weights["words"].T)
    return -jnp.take_along_axis(logits, tokens[:, 1:, None], -1).mean()


def rank(number: int, size: int, port: str) -> None:
    """One process of a block: prints its table."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    def step(weights: Any, tokens: Any) -> tuple[Any, Any]:
        value, slopes = jax.value_and_grad(loss)(weights, tokens)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, weights, slopes)

    tokens = np.random.default_rng(1).integers(WORDS, size=(BATCH, LENGTH + 1))
    weights = parameters()
    assert round(sum(each.size for each in jax.tree.leaves(weights)) / 1e6, 1) == 5.0
    program = jax.jit(step)
    if size > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", size, number)
        mesh = Mesh(np.array(jax.devices()), "batch")
        spread, whole = NamedSharding(mesh, PartitionSpec("batch")), NamedSharding(mesh, PartitionSpec())
        mine = tokens[number * BATCH // size : (number + 1) * BATCH // size]
        tokens = jax.make_array_from_process_local_data(spread, mine)
        weights = jax.tree.map(lambda each: jax.make_array_from_process_local_data(whole, each), weights)
    table: Table = {}
    times = []
    for number_of_step in range(COMPARED + STEPS):
        began = time.perf_counter()
        value, weights = program(weights, tokens)
        jax.block_until_ready(weights)
        if number_of_step < COMPARED:
            table[f"loss {number_of_step}"] = float(value)
        else:
            times.append((time.perf_counter() - began) * 1e3)
    table["step"] = statistics.median(times)
    if size == 1:
        print(table)
        return
    leave(number, table)


def alone() -> list[float]:
    """The losses of one process."""
    import ast
    import subprocess
    import sys

    command = [sys.executable, "-m", "hocket.lab.frameworks.jax_transformer", "--port", "0", "--size", "1"]
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    said = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
    return losses(ast.literal_eval(said))


def losses(table: Table) -> list[float]:
    return [table[f"loss {number}"] for number in range(COMPARED)]


def main() -> None:
    count = blocks(__doc__, rank)
    expected = alone()
    print(f"milliseconds; {processor()}, medians of {count} blocks; losses of one process: {expected}")
    with tempfile.TemporaryDirectory() as folder:
        ways = doors(folder)
        print(f"| | {' | '.join(ways)} |\n|---|{'---|' * len(ways)}")
        for size in (2, 4):
            found: dict[str, list[float]] = {}
            for _ in range(count):
                for name, library in ways.items():
                    table = block(name, library, size, "hocket.lab.frameworks.jax_transformer")
                    found.setdefault(name, []).append(table["step"])
                    off = max(abs(a / b - 1) for a, b in zip(losses(table), expected, strict=True))
                    assert name == "nothing" or off < NEAR, (name, size, table)
            own = statistics.median(found["nothing"])
            cells = [statistics.median(found[name]) - own * (name != "nothing") for name in ways]
            print(f"| {size} ranks: communication; nothing: the step | {' | '.join(f'{each:.1f}' for each in cells)} |")


if __name__ == "__main__":
    main()
