"""Does training with fewer bits end where training with all of them does?

    hocket run -n 4 -- python -m hocket.lab.compression.parity [--shards iid|sorted] [--rows int8,sign] [--models 25]

The digits and network of hocket.lab.outer.digits, 16 images a rank and step, 20 epochs, momentum 0.9,
a rate of 0.05 that falls to a tenth at three quarters.  Matrices are compressed, biases are not.  There are 25 models:
five parts of the data to test with, five seeds each; they train side by side, so that one call carries the gradients of
all.  `--shards sorted`: each rank has other digits than the rest.  There the feedback shows what it is for, and what
has none must be worse.  A row takes 40 s of two cores of an AMD EPYC.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hocket.compression import (
    DGC,
    EF21,
    QSGD,
    Compressor,
    DoubleSqueeze,
    Method,
    OneBit,
    PowerSGD,
    TernGrad,
    TopK,
    resolved,
)  # fmt: skip
from hocket.lab.outer.digits import (
    EACH,
    LAYERS,
    MOMENTUM,
    WORDS,
    Array,
    Data,
    gradients,
    judged,
    rate_of,
    tabled,
    weights,
)
from hocket.lab.program import arguments

EPOCHS = 20


class Recipe(NamedTuple):
    method: Callable[[], Method] | None
    feedback: bool = True
    momentum: float = MOMENTUM
    """The optimizer's momentum: a method may have its own."""


def _sparse_dgc(warmup: Sequence[float]) -> Method:
    return DGC(0.001, MOMENTUM, warmup=warmup, every=22)


ROWS = {
    "float32": Recipe(None),
    "int8": Recipe(lambda: resolved("int8")),
    "int4": Recipe(lambda: resolved("int4")),
    "qsgd 7": Recipe(lambda: resolved(QSGD(7))),
    "qsgd 1": Recipe(lambda: resolved(QSGD(1))),
    "qsgd 22 l2": Recipe(lambda: resolved(QSGD(22, norm="l2"))),
    "terngrad": Recipe(lambda: resolved(TernGrad())),
    "terngrad shared": Recipe(lambda: resolved("shared:1")),
    "elias qsgd 4 l2": Recipe(lambda: resolved("elias:4")),
    "sign alone": Recipe(lambda: resolved("sign"), feedback=False),
    "doublesqueeze sign": Recipe(lambda: resolved("doublesqueeze:sign")),
    "doublesqueeze onebit": Recipe(lambda: DoubleSqueeze(OneBit())),
    "topk 1% alone": Recipe(lambda: TopK(0.01), feedback=False),
    "topk 1%": Recipe(lambda: TopK(0.01)),
    "ef21 topk 1%": Recipe(lambda: EF21(TopK(0.01))),
    "ef21 topk 10%": Recipe(lambda: EF21(TopK(0.1))),
    "dgc 0.1%": Recipe(lambda: _sparse_dgc((0.25, 0.063, 0.0156, 0.004)), momentum=0.0),
    "dgc 0.1% cold": Recipe(lambda: _sparse_dgc(()), momentum=0.0),
    "powersgd 1": Recipe(lambda: PowerSGD(1)),
    "powersgd 4": Recipe(lambda: PowerSGD(4)),
}

IID = [name for name in ROWS if name not in ("int4", "sign alone", "topk 1% alone", "ef21 topk 1%")]
SORTED = [
    "float32", "sign alone", "doublesqueeze sign", "topk 1% alone", "topk 1%", "ef21 topk 10%", "powersgd 1",
    "terngrad",
]  # fmt: skip
"""The rows of each table, unless others are asked for."""


class Outcome(NamedTuple):
    accuracy: Array
    """Accuracy of each model, in percent."""
    loss: float
    bits: float
    """Bits of a parameter on the wire, in the mean of all steps."""
    seconds: float


def trained(comm: Any, row: Recipe, known: Data, epochs: int, shards: str) -> Outcome:
    """All models, by one way to average."""
    models, count = known.digits.shape
    parameters, depth, began = weights(models), len(LAYERS) - 1, time.perf_counter()
    speeds = [np.zeros_like(one) for one in parameters]
    compressor = None if row.method is None else Compressor(comm, row.method(), row.feedback)
    keys = [f"{layer}.{model}" for layer in range(depth) for model in range(models)]
    dice = [np.random.default_rng([11, model]) for model in range(models)]
    share, steps, which, sent = count // comm.size, count // (EACH * comm.size), np.arange(models)[:, None], 0
    for epoch in range(epochs):
        rate = rate_of(epoch, epochs)
        if shards == "sorted":  # each rank draws of its own share
            first = comm.rank * share
            orders = np.stack([first + d.permuted(np.tile(np.arange(share), (comm.size, 1)), axis=1)[comm.rank]
                               for d in dice])  # fmt: skip
        else:
            orders = np.stack([d.permutation(count)[comm.rank :: comm.size] for d in dice])
        for step in range(steps):
            taken = orders[:, step * EACH : (step + 1) * EACH]
            found = gradients(parameters, known.images[which, taken], known.digits[which, taken])
            sent += _average(comm, compressor, keys, found, rate)
            for parameter, speed, gradient in zip(parameters, speeds, found, strict=True):
                speed *= row.momentum
                speed += gradient
                parameter -= rate * speed
    accuracy, loss = judged(parameters, known)
    bits = 8 * sent / (epochs * steps * sum(one.size for one in parameters))
    return Outcome(accuracy, loss, bits, time.perf_counter() - began)


def _average(
    comm: Any, compressor: Compressor | None, keys: Sequence[str], found: list[Array], rate: float
) -> int:
    """The gradients of all ranks, in place.  Returns the bytes that they are on the wire."""
    depth = len(found) // 2
    dense = found[depth:] if compressor else found
    whole = comm.allreduce(np.concatenate([one.reshape(-1) for one in dense]), "avg")
    for one, part in zip(dense, np.split(whole, np.cumsum([one.size for one in dense])[:-1]), strict=True):
        one[...] = part.reshape(one.shape)
    if compressor is None:
        return int(whole.nbytes)
    compressor.allreduce_all([one for layer in found[:depth] for one in layer], keys, lr=rate)
    models = len(found[0])  # all alike
    return int(whole.nbytes) + models * sum(compressor.stats(key).sent for key in keys[::models])


def main(argv: Sequence[str] | None = None) -> int:
    def usual(shards: str) -> Sequence[str]:
        return IID if shards == "iid" else SORTED

    def cost(made: Outcome) -> str:
        return f"{made.bits:.2f} | {32 / made.bits:.1f} | {made.seconds:.0f}"

    options = arguments("hocket.lab.compression.parity", __doc__, argv, **WORDS, epochs=EPOCHS)
    return tabled(options, ROWS, usual, ",", "bits of a parameter | ratio | s", trained, cost)


if __name__ == "__main__":
    sys.exit(main())
