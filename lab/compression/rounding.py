"""The error of a compressed sum: by the number of ranks, and of real gradients by the bits of an element.

    python -m hocket.lab.compression.rounding [--gradients]

By ranks: each rank has other normal numbers.  The error is the length of (sum - exact) / that of exact.  "direct"
encodes twice, whatever the number of ranks: the error stays.  A ring encodes at each rank, a tree at each level: theirs
grow.

`--gradients`: vNMSE, the square of that, the measure of Han et al., "DynamiQ: Accelerating Gradient Synchronization
using Compressed Multi-hop All-reduce", arXiv 2602.08923; in the mean of steps 50, 100 and 150 of a training.  A network
of 784-1024-256-10, 1,068,810 parameters, learns Fashion-MNIST on 8 ranks, 32 images each.  Beside hocket's codecs the
microscaling formats (OCP MX 1.0: 32 elements share a power of two), which are encoded, added and encoded here in NumPy,
as "direct" and a ring do it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.compression import QSGD, Int, Natural, TernGrad
from hocket.kernels.codecs import CODECS
from hocket.lab.outer.large_batch import data, gradients, weights

Array = np.ndarray[Any, Any]
SIZES = (2, 4, 8, 16)
ALGORITHMS = ("direct", "ring", "tree")
NAMES = ("int8", "int4", "fp8")
COUNT = 1 << 16


def errors(comm: Communicator, x: Array, codecs: Sequence[Any], algorithms: Sequence[str]) -> list[list[float]]:
    """The error of the sum of all ranks' x, by codec and algorithm."""
    exact = comm.allreduce(x.astype(float))
    made = [[comm.allreduce(x.copy(), codec=codec, algorithm=name) for name in algorithms] for codec in codecs]
    return [[float(np.linalg.norm(y - exact) / np.linalg.norm(exact)) for y in row] for row in made]


def of_normal_numbers(comm: Communicator, codecs: Sequence[str]) -> list[list[float]]:
    return errors(comm, np.random.default_rng(comm.rank).standard_normal(COUNT, np.float32), codecs, ALGORITHMS)


def table(codecs: Sequence[str], sizes: Sequence[int]) -> dict[tuple[str, int], list[float]]:
    """By codec and number of ranks."""
    found: dict[tuple[str, int], list[float]] = {}
    for size in sizes:
        with hocket.local_world(size) as world:
            rows = world.run(of_normal_numbers, codecs)[0]
            found |= {(codec, size): row for codec, row in zip(codecs, rows, strict=True)}
    return found


# -------------------------------------------------------------------------------------------------- of real gradients

LAYERS, RANKS, EACH, RATE = (784, 1024, 256, 10), 8, 32, 0.1
STEPS = (50, 100, 150)
OURS = {
    **{codec.name: codec for codec in CODECS}, "Int(6)": Int(6), "Int(5)": Int(5), "Natural()": Natural(),
    "QSGD(7)": QSGD(7), "TernGrad()": TernGrad(),
}  # fmt: skip
MX = {
    "MXFP8 (E4M3)": (ml_dtypes.float8_e4m3fn, 8), "MXFP6 (E2M3)": (ml_dtypes.float6_e2m3fn, 6),
    "MXFP6 (E3M2)": (ml_dtypes.float6_e3m2fn, 6), "MXFP4 (E2M1)": (ml_dtypes.float4_e2m1fn, 4),
}  # fmt: skip
"""Formats of elements, and their bits."""
BLOCK = 32


def microscaled(x: Array, kind: Any) -> Array:
    """The values that the encoding of x stands for.

    The scale is the largest power of two in the block over that of the format; what is above the format's largest
    number becomes that.
    """
    most = float(ml_dtypes.finfo(kind).max)  # type: ignore[no-untyped-call]
    blocks = np.zeros((-(-x.size // BLOCK), BLOCK), np.float32)
    blocks.reshape(-1)[: x.size] = x
    _, top = np.frexp(np.abs(blocks).max(1, keepdims=True))
    scale = np.ldexp(np.float32(1), top - np.frexp(most)[1])
    made: Array = np.clip(blocks / scale, -most, most).astype(kind).astype(np.float32) * scale
    return made.reshape(-1)[: x.size]


def direct(xs: Sequence[Array], encoded: Callable[[Array], Array]) -> Array:
    """The sum of what is encoded, encoded."""
    return encoded(np.asarray(np.sum([encoded(x) for x in xs], 0, dtype=np.float32)))


def ring(xs: Sequence[Array], encoded: Callable[[Array], Array]) -> Array:
    """Part i of the sum begins at rank i + 1, and is encoded by each rank that has added its own."""
    parts = [np.array_split(x, len(xs)) for x in xs]
    made = []
    for i in range(len(xs)):
        total = encoded(parts[(i + 1) % len(xs)][i])
        for step in range(2, len(xs) + 1):
            total = encoded(total + parts[(i + step) % len(xs)][i])
        made.append(total)
    return np.concatenate(made)


def measured(comm: Communicator, steps: Sequence[int]) -> list[list[float]]:
    """Train, and at these steps look: vNMSE by direct and ring, of each of ours, then of each of MX."""
    (x, shown), w, found = data("train"), weights(np.random.default_rng(0), LAYERS), []
    for step in range(steps[-1] + 1):
        taken = np.random.default_rng([step, comm.rank]).integers(0, len(x), EACH)
        made = gradients(w, x[taken], shown[taken])
        flat = np.concatenate([made[name].reshape(-1) for name in w])
        if step in steps:
            rows = errors(comm, flat, list(OURS.values()), ("direct", "ring"))
            every = [*comm.allgather(flat[None])]
            exact = np.sum(every, 0, dtype=float)
            for kind, _ in MX.values() if comm.rank == 0 else ():
                sums = [way(every, partial(microscaled, kind=kind)) for way in (direct, ring)]
                rows.append([float(np.linalg.norm(y - exact) / np.linalg.norm(exact)) for y in sums])
            found.append(rows)
        average = np.split(comm.allreduce(flat, "avg"), np.cumsum([each.size for each in w.values()])[:-1])
        for name, part in zip(w, average, strict=True):
            w[name] -= RATE * part.reshape(w[name].shape)
    mean: list[list[float]] = np.square(found).mean(0).tolist()
    return mean


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gradients", action="store_true", help="of a training, instead of normal numbers")
    if parser.parse_args(argv).gradients:
        count = sum(a * b + b for a, b in zip(LAYERS[:-1], LAYERS[1:], strict=True))
        bits = [8 * codec.nbytes(count) / count for codec in OURS.values()] + [b + 8 / BLOCK for _, b in MX.values()]
        with hocket.local_world(RANKS) as world:
            rows = world.run(measured, STEPS)[0]
        print(f"# {count:,} parameters, {RANKS} ranks\n| codec | bits | direct | ring |\n|---|---|---|---|")
        for each, name, row in sorted(zip(bits, [*OURS, *MX], rows, strict=True)):
            print(f"| {name} | {each:.2f} | {' | '.join(f'{error:.2g}' for error in row)} |")
        return
    print(f"| codec | way | {' | '.join(f'{size} ranks' for size in SIZES)} |\n|---|---|{'---|' * len(SIZES)}")
    found = table(NAMES, SIZES)
    for codec in NAMES:
        for i, way in enumerate(ALGORITHMS):
            print(f"| {codec} | {way} | {' | '.join(f'{found[codec, size][i]:.4f}' for size in SIZES)} |")


if __name__ == "__main__":
    main()
