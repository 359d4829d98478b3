"""Does training with fewer bits, or with averages that come late, end where training with all of them does?

    hocket run -n 4 -- python -m hocket.lab.compression.parity [--shards iid|sorted] [--rows int8,sign] [--seeds 5]

Fashion-MNIST and the network of hocket.lab.outer.large_batch, 535,818 parameters: 10,000 images, 4 epochs of 64 images
a step, momentum 0.9, a rate of 0.05 that falls to a tenth at three quarters.  Matrices are compressed, biases are not.
`--shards sorted`: each rank has other clothes than the rest.  There the feedback shows what it is for, and what has
none must be worse.

"Bits of a parameter": what the kernel says that this rank's TCP sockets have sent (TCP_INFO), heads and all, against
the 2 (p-1)/p of a vector that an allreduce of float32 sends, which is 32.  A row takes one to two minutes of two quiet
cores of an AMD EPYC.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import hocket
from hocket.arguments import choices
from hocket.compression import DGC, QSGD, Compressor, DoubleSqueeze, Method, OneBit, TernGrad, resolved
from hocket.errors import ArgumentError
from hocket.lab.outer.large_batch import FALLS, RATE, SMALL, Array, data, gradients, judged, weights
from hocket.system.machine import tcp_info
from hocket.training import Delayed, Scheduler

IMAGES, EPOCHS, MOMENTUM, SEEDS = 10_000, 4, 0.9, 5
Tree = dict[str, Array]


class Recipe(NamedTuple):
    method: str | Callable[[], Method] | None = None
    feedback: bool = True
    momentum: float = MOMENTUM
    """The optimizer's momentum: a method may have its own."""
    first: bool = False
    """Each rank has the momentum, and the method sends that."""
    late: int = 0
    """Steps by which averages come late."""
    od: bool = False
    """`Delayed`: OD-SGD."""


def _sparse_dgc(*warmup: float) -> Method:
    return DGC(0.001, MOMENTUM, warmup=warmup, every=IMAGES // SMALL // 2)


ROWS = {
    "float32": Recipe(),
    "int8": Recipe("int8"),
    "int4": Recipe("int4"),
    "qsgd 7": Recipe(lambda: resolved(QSGD(7))),
    "qsgd 1": Recipe(lambda: resolved(QSGD(1))),
    "qsgd 22 l2": Recipe(lambda: resolved(QSGD(22, norm="l2"))),
    "terngrad": Recipe(lambda: resolved(TernGrad())),
    "terngrad shared": Recipe("shared:1"),
    "elias qsgd 4 l2": Recipe("elias:4"),
    "sign alone": Recipe("sign", feedback=False),
    "sign": Recipe("sign"),
    "doublesqueeze sign": Recipe("doublesqueeze:sign"),
    "doublesqueeze onebit": Recipe(lambda: DoubleSqueeze(OneBit())),
    "topk 1% alone": Recipe("topk:0.01", feedback=False),
    "topk 1%": Recipe("topk:0.01"),
    "oktopk 1%": Recipe("oktopk:0.01"),
    "doublesqueeze topk 1%": Recipe("doublesqueeze:topk:0.01"),
    "ef21 topk 1%": Recipe("ef21:topk:0.01"),
    "ef21 topk 1% momentum first": Recipe("ef21:topk:0.01", first=True),
    "ef21 topk 10%": Recipe("ef21:topk:0.1"),
    "dgc 0.1%": Recipe(lambda: _sparse_dgc(0.25, 0.063, 0.0156, 0.004), momentum=0.0),
    "dgc 0.1% cold": Recipe(_sparse_dgc, momentum=0.0),
    "powersgd 1": Recipe("powersgd:1"),
    "powersgd 2": Recipe("powersgd:2"),
    "powersgd 4": Recipe("powersgd:4"),
    "od-sgd": Recipe(od=True),
    "stale 1": Recipe(late=1),
    "stale 4": Recipe(late=4),
    "stale 8": Recipe(late=8),
}

IID = [name for name in ROWS if name not in ("int4", "sign alone", "topk 1% alone")]
SORTED = [
    "float32", "sign alone", "sign", "doublesqueeze sign", "topk 1% alone", "topk 1%", "doublesqueeze topk 1%",
    "ef21 topk 1%", "ef21 topk 1% momentum first", "powersgd 1", "terngrad", "od-sgd",
]  # fmt: skip
"""The rows of each table, unless others are asked for."""


class ParityRun(NamedTuple):
    accuracy: float
    """In percent."""
    loss: float
    sent: float
    """Bytes of a step that have left this rank by TCP."""
    seconds: float


def on_sockets() -> int:
    """Bytes that the TCP connections of this process have carried away so far."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        total += tcp_info(int(name)).get("bytes_acked", 0)  # else it is something else
    return total


def trained(comm: Any, row: Recipe, seed: int, epochs: int, count: int, shards: str) -> ParityRun:
    (x, shown), (tests, answers) = data("train", count), data("t10k")
    order = np.argsort(shown, kind="stable") if shards == "sorted" else np.arange(count)
    dice, w = np.random.default_rng([5, seed]), weights(np.random.default_rng([7, seed]))
    share, each, steps = count // comm.size, SMALL // comm.size, count // SMALL
    update = _late(comm, w, row) if row.late else _od(comm, w) if row.od else _at_once(comm, w, row)
    began, before = time.perf_counter(), on_sockets()
    for epoch in range(epochs):
        rate = RATE * (1 if epoch < FALLS * epochs else 0.1)
        drawn = dice.permutation(count)
        own = drawn[comm.rank :: comm.size]
        if shards == "sorted":
            own = order[comm.rank * share + np.argsort(drawn[:share])]
        for step in range(steps):
            taken = own[step * each :][:each]
            update(gradients(w, x[taken], shown[taken]), rate)
    update({}, 0.0)
    comm.barrier()
    sent = (on_sockets() - before) / (epochs * steps)
    return ParityRun(*judged(w, x, shown, tests, answers), sent, time.perf_counter() - began)


# ------------------------------------------------------------------------- ways to average and to step; {}: it is over


def _at_once(comm: Any, w: Tree, row: Recipe) -> Callable[[Tree, float], None]:
    """Biases in one call, and matrices by the method, if there is one."""
    made = row.method() if callable(row.method) else row.method
    compressor = None if made is None else Compressor(comm, made, row.feedback)
    speeds = {name: np.zeros_like(each) for name, each in w.items()}

    def gathered(found: Tree) -> None:
        for name, gradient in found.items():
            speeds[name] *= row.momentum
            speeds[name] += gradient
            found[name] = speeds[name].copy()

    def update(found: Tree, rate: float) -> None:
        if row.first:
            gathered(found)
        dense = [name for name in found if compressor is None or name.startswith("b")]
        if dense:
            whole = comm.allreduce(np.concatenate([found[name].reshape(-1) for name in dense]), "avg")
            ends = np.cumsum([found[name].size for name in dense])[:-1]
            found |= {n: part.reshape(w[n].shape) for n, part in zip(dense, np.split(whole, ends), strict=True)}
        if found and compressor is not None:
            matrices = [name for name in found if name.startswith("w")]
            compressor.allreduce_all([found[name] for name in matrices], matrices, lr=rate)
        if not row.first:
            gathered(found)
        for name, step in found.items():
            w[name] -= rate * step

    return update


def _late(comm: Any, w: Tree, row: Recipe) -> Callable[[Tree, float], None]:
    """The average of a step moves the weights `late` steps later."""
    speeds, under_way = {name: np.zeros_like(each) for name, each in w.items()}, deque[tuple[Any, float]]()

    def update(found: Tree, rate: float) -> None:
        if found:
            whole = np.concatenate([found[name].reshape(-1) for name in w])
            under_way.append((comm.allreduce(whole, "avg", async_op=True), rate))
        while len(under_way) > (row.late if found else 0):
            work, its = under_way.popleft()
            ends = np.cumsum([each.size for each in w.values()])[:-1]
            for name, part in zip(w, np.split(work.result(), ends), strict=True):
                speeds[name] *= MOMENTUM
                speeds[name] += part.reshape(w[name].shape)
                w[name] -= its * speeds[name]

    return update


def _od(comm: Any, w: Tree) -> Callable[[Tree, float], None]:
    delayed = Delayed(Scheduler(comm), w, RATE, momentum=MOMENTUM)

    def update(found: Tree, rate: float) -> None:
        if not found:
            return delayed.finish()
        delayed.lr = rate
        return delayed.step(found)

    return update


def main(argv: Sequence[str] | None = None) -> int:
    words = __doc__.split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m hocket.lab.compression.parity", description=words)
    parser.add_argument("--shards", choices=["iid", "sorted"], default="iid", help="of the images to train with")
    parser.add_argument("--rows", help=f"which ways, with commas; known: {', '.join(ROWS)}".replace("%", "%%"))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args(argv)
    usual = IID if options.shards == "iid" else SORTED
    names = options.rows.split(",") if options.rows else usual
    if wrong := [name for name in names if name not in ROWS]:
        raise ArgumentError(f"{wrong[0]!r} is unknown; {choices(wrong[0], ROWS)}")
    with hocket.init(transport="tcp") as comm:
        if comm.rank == 0:
            print(f"# {options.seeds} seeds, {comm.size} ranks, {options.shards} shards, {options.epochs} epochs")
            print("| method | bits of a parameter (ratio) | accuracy, % | loss | s |\n|---|---|---|---|---|")
        for name in names:
            made = [
                trained(comm, ROWS[name], seed, options.epochs, IMAGES, options.shards) for seed in range(options.seeds)
            ]
            accuracy, loss, sent, seconds = (np.array(each) for each in zip(*made, strict=True))
            count = sum(each.size for each in weights(np.random.default_rng(0)).values())
            bits = float(comm.allreduce(sent.mean() * 8, "avg")) / (2 * (comm.size - 1) / comm.size * count)
            if comm.rank == 0:
                spread = f"{accuracy.mean():.2f} ± {accuracy.std():.2f} | {loss.mean():.4f} | {seconds.mean():.0f}"
                print(f"| {name} | {bits:.2f} ({32 / bits:.1f}) | {spread} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
