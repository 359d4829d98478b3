"""Are the codecs that round at random what their papers say?  `python -m hocket.lab.compression.statistics`

512 normal numbers, encoded 10,000 times.  "bias": the largest z-score of any element's mean, that chance takes to 4 and
seldom to 5.  "variance": of the encoding, as a part of the vector's squared length; beside it what the codec's
definition says, and the bound of its paper.  "not zero": of the 512, in the mean, and the paper's bound.  "bits": of an
element; beside it with Elias' codes, in the mean, and QSGD's bound for these (theorem 3.2, without its o(1), and
corollary 3.3).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hocket.compression import QSGD, Int, Natural, TernGrad
from hocket.kernels.codecs import WHOLE, Codec
from hocket.kernels.cpu import elias, reduce

Array = np.ndarray[Any, Any]
COUNT, DRAWS = 512, 10_000


class Moments(NamedTuple):
    """The statistics of one codec and vector."""

    bias: float
    variance: float
    exact: float
    bound: float
    filled: float
    most: float
    bits: float
    elias: float
    """Bits, with codes of different lengths; infinity: there are none."""
    shortest: float
    """The paper's bound for these."""


class Law(NamedTuple):
    """A paper's law about a codec: of a vector, the variance of its encoding and the mean that it has."""

    codec: Codec
    variance: Callable[[Array], Array]
    """The variance of each element."""
    bound: float
    """The bound of the variance, as a part of the squared length; infinity: it has none."""
    most: float = float(COUNT)
    """Elements that are not zero."""
    mean: Callable[[Array], Array] = lambda x: x
    elias: float = math.inf
    """Bits of an element, by Elias' codes."""


def _between(x: Array, below: Array, above: Array) -> Array:
    """The variance of elements that become one of two values with x as the mean."""
    return np.asarray((x - below) * (above - x))


def _levels(x: Array, step: float) -> Array:
    below = np.floor(np.abs(x) / step) * step
    return _between(np.abs(x), below, below + step)


def _qsgd(levels: int, norm: str) -> Law:
    def scale(x: Array) -> float:
        return float(np.linalg.norm(x) if norm == "l2" else np.abs(x).max())

    bound = min(COUNT / levels**2, math.sqrt(COUNT) / levels) if norm == "l2" else math.inf
    most = levels * (levels + math.sqrt(COUNT)) if norm == "l2" else COUNT
    bits = min((3 + 1.5 * math.log2(2 * (levels**2 + COUNT) / most)) * most, 2.8 * COUNT) + 32
    return Law(
        QSGD(levels, COUNT, norm), lambda x: _levels(x, scale(x) / levels), bound, min(most, COUNT),
        elias=bits / COUNT if norm == "l2" and levels**2 < COUNT else math.inf,
    )  # fmt: skip


def _terngrad(clip: float) -> Law:
    def cut(x: Array) -> Array:
        most = clip * math.sqrt(float((x * x).mean()))
        return np.clip(x, -most, most)

    return Law(TernGrad(clip, COUNT), lambda x: _levels(cut(x), float(np.abs(cut(x)).max())), math.inf, mean=cut)


def _natural() -> Law:
    def variance(x: Array) -> Array:
        below = np.exp2(np.floor(np.log2(np.abs(x))))
        return _between(np.abs(x), below, 2 * below)

    return Law(Natural(COUNT), variance, 1 / 8)


def _whole(bits: int) -> Law:
    most = (1 << (bits - 1)) - 1
    return Law(Int(bits, COUNT, "stochastic"), lambda x: _levels(x, float(np.abs(x).max()) / most), math.inf)


LAWS = {
    "QSGD(1, norm='l2')": _qsgd(1, "l2"), "QSGD(4, norm='l2')": _qsgd(4, "l2"), "QSGD(22, norm='l2')": _qsgd(22, "l2"),
    "QSGD(7)": _qsgd(7, "max"), "TernGrad(2.5)": _terngrad(2.5), "TernGrad(inf)": _terngrad(math.inf),
    "Natural()": _natural(), "Int(8, rounding='stochastic')": _whole(8), "Int(4, rounding='stochastic')": _whole(4),
}  # fmt: skip


def measured(law: Law, draws: int = DRAWS) -> Moments:
    """Measure."""
    x = np.random.default_rng(2).standard_normal(COUNT).astype(np.float32)
    mean, square, filled, short = np.zeros(COUNT), np.zeros(COUNT), 0, 0
    wire = np.empty(law.codec.nbytes(COUNT), np.uint8)
    right, y = law.mean(x.astype(float)), np.empty(COUNT, np.float32)
    for draw in range(draws):
        reduce.encode_array(wire, x, law.codec, draw)
        reduce.decode_array(y, wire, law.codec)
        off = y - right
        mean, square, filled = mean + off, square + off * off, filled + int(np.count_nonzero(y))
        short += elias.shorten(wire, law.codec).size if law.codec.code == WHOLE else 0
    exact, length = law.variance(x.astype(float)), float(right @ right)
    error = np.sqrt(np.maximum(exact, 1e-30) / draws)
    # Where rounding moves nothing, float32 still differs from the exact mean by its own precision.
    bias = np.maximum(np.abs(mean / draws) - 1e-6 * np.abs(right).max(), 0) / error
    return Moments(
        float(bias.max()), float(square.sum()) / draws / length, float(exact.sum()) / length, law.bound,
        filled / draws, law.most, 8 * wire.size / COUNT, 8 * short / draws / COUNT or math.inf, law.elias,
    )  # fmt: skip


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print("| codec | bias | variance | by definition | bound | not zero | bound | bits | by Elias | bound |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, law in LAWS.items():
        row = measured(law)
        bound, short, shortest = (
            f"{value:.4g}" if math.isfinite(value) else "" for value in (row.bound, row.elias, row.shortest)
        )
        print(
            f"| {name} | {row.bias:.1f} | {row.variance:.4g} | {row.exact:.4g} | {bound} |"
            f" {row.filled:.0f} | {row.most:.0f} | {row.bits:.2f} | {short} | {shortest} |"
        )


if __name__ == "__main__":
    main()
