"""A network in NumPy whose gradients travel while the backward pass goes on, and arrive as the forward pass needs them.

hocket run -n 2 -- python overlapped.py
"""

import itertools

import numpy as np

import hocket
from hocket.training import Scheduler

STEPS, ROWS, SIZES = 60, 48, [8, 64, 64, 1]


def train(comm):
    """The losses of all rows, at the beginning and at the end."""
    random = np.random.default_rng(0)  # the same data everywhere; each rank has rows of its own
    x = random.normal(size=(ROWS, SIZES[0]))
    y = np.sin(x.sum(axis=1, keepdims=True))
    mine, wanted = x[comm.rank :: comm.size], y[comm.rank :: comm.size]
    weights = {f"layer {i}": random.normal(size=s) / np.sqrt(s[0]) for i, s in enumerate(itertools.pairwise(SIZES))}

    scheduler = Scheduler(comm)
    for name, w in weights.items():  # as the forward pass uses them
        scheduler.declare(name, w)

    def update(name):
        """The average of all ranks' gradients of this layer moves it; waits for this one alone."""
        weights[name] -= 0.1 * scheduler.wait(name)

    losses = []
    for step in range(STEPS):
        inputs = [mine]
        for name in weights:  # the forward pass
            if step:
                update(name)
            out = inputs[-1] @ weights[name]
            inputs.append(out if name == [*weights][-1] else np.tanh(out))
        error = inputs.pop() - wanted
        losses.append(float(comm.allreduce((error * error).sum())) / ROWS)
        grad = 2 * error / len(mine)
        for name in reversed(weights):  # the backward pass
            gradient = inputs[-1].T @ grad
            scheduler.ready(name, gradient)  # returns at once
            grad = (grad @ weights[name].T) * (1 - inputs.pop() ** 2)
        scheduler.step()
    for name in weights:
        update(name)
    return losses[0], losses[-1]


if __name__ == "__main__":
    with hocket.init() as comm:
        first, last = train(comm)
        if comm.rank == 0:
            print(f"{comm.size} ranks: loss {first:.4f}, after {STEPS} steps {last:.4f}")
