"""Training that goes on when ranks die, and lets new ones in: a NumPy loop that averages gradients.

    hocket run -n 4 --elastic --least 2 --most 4 examples/survive.py

Kill any of its processes, rank 0 too: the others go on with the same weights, and `hocket run` starts another one.
"""

from __future__ import annotations

import argparse
import time
import zlib

import numpy as np

import hocket
from hocket.training import Again, Crew


class Model:
    """Weights of a linear regression; what `Crew` asks of a state."""

    def __init__(self, size: int) -> None:
        self.position = 0
        """Steps done."""
        self.weights = np.zeros(size)
        self.truth = np.random.default_rng(0).standard_normal(size)

    def gradient(self, rank: int) -> np.ndarray:
        x = np.random.default_rng((self.position, rank)).standard_normal((32, self.weights.size))
        return x.T @ (x @ (self.weights - self.truth)) / len(x)

    def arrays(self) -> dict[str, np.ndarray]:
        return {"weights": self.weights}

    def numbers(self) -> dict[str, int]:
        return {"position": self.position}

    def load(self, numbers: dict[str, int]) -> None:
        self.position = numbers["position"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=0.02, help="that a step takes besides")
    options = parser.parse_args()
    model = Model(20)
    crew = Crew(hocket.init(elastic=True), on_change=lambda change: print(change, flush=True))
    while model.position < options.steps:
        crew.boundary(model)  # newcomers come in here
        try:
            with crew.attempt(model):
                gradient = model.gradient(crew.comm.rank)
                time.sleep(options.seconds)
                here = crew.present()
                model.weights -= 0.1 * here.allreduce(gradient, "avg")
                model.position += 1
            if model.position == 1:
                print("the first step is done", flush=True)
        except Again as why:
            print(why, flush=True)
    print(f"rank {crew.comm.rank} of {crew.comm.size}: weights {zlib.crc32(model.weights.data):08x}, "
          f"error {abs(model.weights - model.truth).max():.4f}", flush=True)  # fmt: skip
    crew.close()


if __name__ == "__main__":
    main()
