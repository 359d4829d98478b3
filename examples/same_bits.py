"""The same training on 1, 2, 3 or 4 ranks, to the last bit: 12 micro-batches a step, whoever has them.

    hocket run -n 3 examples/same_bits.py
    python examples/same_bits.py

A sum of floats depends on who adds first, so a training usually ends in other weights on other numbers of ranks.  Here
each micro-batch's gradient is an addend of its own, and `order="exact"` rounds their average once.
"""

import hashlib

import numpy as np

import hocket
from hocket.training import Adam, Sharded

MICRO_BATCHES, STEPS = 12, 20


def gradient(w, b, seed):
    """The derivative of a logistic loss on one micro-batch, which its seed makes."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(16, w.size)).astype(np.float32)
    y = (x.sum(1) > 0).astype(np.float32)
    error = 1 / (1 + np.exp(-(x * w).sum(1) - b)) - y
    return {"w": (x * error[:, None]).mean(0), "b": error.mean(keepdims=True)}


def train(comm):
    """20 steps; the digest of the weights."""
    parameters = {"w": np.zeros(1000, np.float32), "b": np.zeros(1, np.float32)}
    sharded = Sharded(Adam(lr=0.01), comm, parameters, order="exact")
    for step in range(STEPS):
        mine = range(comm.rank, MICRO_BATCHES, comm.size)
        sharded.step([gradient(parameters["w"], parameters["b"], (step, each)) for each in mine])
    return hashlib.sha256(parameters["w"].tobytes() + parameters["b"].tobytes()).hexdigest()


if __name__ == "__main__":
    with hocket.init() as comm:
        print(f"rank {comm.rank} of {comm.size}: {train(comm)}")
