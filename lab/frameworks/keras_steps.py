"""The cost of averaging in Keras: a step of an MLP of 10.5 MB with hocket.keras, minus one without.

    KERAS_BACKEND=torch hocket run -n 2 -- python -m hocket.lab.frameworks.keras_steps [--beside ddp|mirrored]

Single steps of `fit`, in turns of blocks with and without, in the same processes; each rank's batch is 32 rows.  Beside
it on torch DistributedDataParallel on hocket (`ddp`), on TensorFlow MultiWorkerMirroredStrategy in a loop of one's own
(`mirrored`), as its fit does not run on Keras 3.  One thread for the framework, on both sides.  Prints medians and
lowest deciles, in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

ONE = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
for name in ONE:
    os.environ[name] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402

import hocket  # noqa: E402
from hocket import Communicator  # noqa: E402
from hocket.system.machine import free_port  # noqa: E402

WIDTHS, ROWS = (512, 1024, 1024, 1024), 32
BLOCKS, STEPS = 10, 8
Block = Callable[[], list[float]]
"""Runs some steps; the seconds of each."""


def data() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(ROWS * STEPS, width)).astype("f") for width in (WIDTHS[0], WIDTHS[-1]))
    return x, y


def mlp() -> Any:
    import keras

    layers = [keras.layers.Dense(width, "relu") for width in WIDTHS[1:]]
    return keras.Sequential([keras.Input((WIDTHS[0],)), *layers])


def in_fit(averaged: bool) -> Block:
    """Steps of Keras's fit."""
    import keras

    import hocket.keras

    class StepClock(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_begin(self, logs: Any = None) -> None:
            self.seconds: list[float] = []

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.began = time.perf_counter()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            state = getattr(self.model, "_jax_state", None)
            if state is not None:
                import jax

                jax.block_until_ready(state["trainable_variables"])
            self.seconds.append(time.perf_counter() - self.began)

    model, clock, (x, y) = mlp(), StepClock(), data()
    model.compile(keras.optimizers.Adam(1e-4), "mse")
    callbacks = [hocket.keras.Average(metrics=False), clock] if averaged else [clock]

    def block() -> list[float]:
        model.fit(x, y, ROWS, shuffle=False, verbose=0, callbacks=callbacks)
        return clock.seconds[1:]

    return block


def in_torch(averaged: bool) -> Block:
    """Steps of a loop of torch's, under DistributedDataParallel or without."""
    import torch

    torch.set_num_threads(1)
    pairs = zip(WIDTHS, WIDTHS[1:], strict=False)
    layers = [each for a, b in pairs for each in (torch.nn.Linear(a, b), torch.nn.ReLU())]
    model: Any = torch.nn.Sequential(*layers)
    if averaged:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer, (x, y) = torch.optim.Adam(model.parameters(), 1e-4), map(torch.from_numpy, data())

    def block() -> list[float]:
        seconds = []
        for i in range(0, len(x), ROWS):
            began = time.perf_counter()
            optimizer.zero_grad()
            loss: Any = torch.nn.functional.mse_loss(model(x[i : i + ROWS]), y[i : i + ROWS])
            loss.backward()
            optimizer.step()
            seconds.append(time.perf_counter() - began)
        return seconds[1:]

    return block


def in_mirrored(strategy: Any) -> Block:
    """Steps of a loop of TensorFlow's, under a strategy or without."""
    import contextlib

    import keras
    import tensorflow as tf

    with strategy.scope() if strategy else contextlib.nullcontext():
        model, (x, y) = mlp(), map(tf.constant, data())
        optimizer = keras.optimizers.Adam(1e-4)
        optimizer.build(model.trainable_variables)

    def local(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    step = tf.function(lambda x, y: strategy.run(local, (x, y)) if strategy else local(x, y))

    def block() -> list[float]:
        seconds = []
        for i in range(0, len(x), ROWS):
            began = time.perf_counter()
            step(x[i : i + ROWS], y[i : i + ROWS])
            model.trainable_variables[0].numpy()
            seconds.append(time.perf_counter() - began)
        return seconds[1:]

    return block


def mirrored(comm: Communicator) -> Any:
    """The strategy over the ranks, which has to be made before TensorFlow does anything."""
    workers = [f"127.0.0.1:{port}" for port in comm.share(free_port("127.0.0.1")[1])]
    task = {"type": "worker", "index": comm.rank}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    import tensorflow as tf

    return tf.distribute.MultiWorkerMirroredStrategy()


def adds(comm: Communicator, ways: tuple[Block, Block]) -> list[tuple[float, float]]:
    """Milliseconds of a step without, and what averaging adds, of this rank's steps, in turns of blocks.

    First by medians, then by lowest deciles, which other programs of the machine disturb less.
    """
    found: tuple[list[float], list[float]] = ([], [])
    for block in range(BLOCKS):
        for way, seconds in zip(ways, found, strict=True):
            comm.barrier()
            some = way()
            if block:  # the first compiles
                seconds += some
    told = [[statistics.quantiles(each, n=10)[at] * 1000 for each in found] for at in (4, 0)]
    return [(without, with_it - without) for without, with_it in told]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", choices=("ddp", "mirrored"))
    given = parser.parse_args()
    comm = hocket.init()
    beside: tuple[Block, Block] | None = None
    if given.beside == "mirrored":
        strategy = mirrored(comm)
        beside = in_mirrored(None), in_mirrored(strategy)
    elif given.beside == "ddp":
        import torch.distributed as dist

        dist.init_process_group("hocket")
        beside = in_torch(False), in_torch(True)
    import keras

    rows = {f"keras on {keras.backend.backend()}": adds(comm, (in_fit(False), in_fit(True)))}
    if beside is not None:
        rows[given.beside] = adds(comm, beside)
    if comm.rank == 0:
        for name, ((without, added), (least, adds_least)) in rows.items():
            usual = f"step {without:6.1f} ms, adds {added:6.1f}"
            print(f"{name:22} {usual}   lowest decile {least:6.1f}, adds {adds_least:6.1f}", flush=True)


if __name__ == "__main__":
    main()
