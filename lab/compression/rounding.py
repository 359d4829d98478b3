"""The growth of a compressed sum's error with the ranks.  `python -m hocket.lab.compression.rounding`

Each rank has other normal numbers.  The error is the length of (sum - exact) / that of exact.  "direct" encodes twice,
whatever the number of ranks: the error stays.  A ring encodes at each rank, a tree at each level: theirs grow.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

import hocket
from hocket.collectives.communicator.communicator import Communicator

SIZES = (2, 4, 8, 16)
ALGORITHMS = ("direct", "ring", "tree")
CODECS = ("int8", "int4", "fp8")
COUNT = 1 << 16


def errors(comm: Communicator, codec: str, algorithms: Sequence[str]) -> list[float]:
    """The errors of a sum by each algorithm."""
    x = np.random.default_rng(comm.rank).standard_normal(COUNT, np.float32)
    exact = comm.allreduce(x.astype(float))
    sums = [comm.allreduce(x.copy(), codec=codec, algorithm=name) for name in algorithms]
    return [float(np.linalg.norm(y - exact) / np.linalg.norm(exact)) for y in sums]


def table(codecs: Sequence[str], sizes: Sequence[int]) -> dict[tuple[str, int], list[float]]:
    """By codec and number of ranks."""
    found = {}
    for size in sizes:
        with hocket.local_world(size) as world:
            for codec in codecs:
                found[codec, size] = world.run(errors, codec, ALGORITHMS)[0]
    return found


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(f"| codec | ranks | {' | '.join(ALGORITHMS)} |")
    print("|---|---|---|---|---|")
    for (codec, size), row in table(CODECS, SIZES).items():
        print(f"| {codec} | {size} | {' | '.join(f'{error:.4f}' for error in row)} |")


if __name__ == "__main__":
    main()
