"""Logistic regression by L-BFGS: every rank has rows of its own, and a part of L-BFGS' vectors.

    hocket run -n 4 examples/logistic.py

Of a gradient, a sum over all rows, each rank gets its part, and the last steps and changes of gradients are kept in
such parts.  L-BFGS asks for their dot products alone, however many weights there are: one small allreduce a step.

Source: Chen, Wang and Zhou, "Large-scale L-BFGS using MapReduce", NeurIPS 2014.
"""

import numpy as np

import hocket

ROWS, WEIGHTS, STEPS, KEPT = 6000, 240, 12, 5


def data() -> tuple[np.ndarray, np.ndarray]:
    """All rows, the same on every rank, and the label of each: yes or no."""
    random = np.random.default_rng(7)
    rows = random.normal(size=(ROWS, WEIGHTS)) * np.geomspace(2, 0.05, WEIGHTS)
    return rows, (random.random(ROWS) < 1 / (1 + np.exp(-rows @ np.linspace(-1, 1, WEIGHTS)))).astype(float)


def direction(comm: hocket.Communicator, vectors: np.ndarray) -> np.ndarray:
    """A rank's part of a step.  `vectors`: its parts of the last m steps, of m changes of gradients, and of a gradient.
    """
    dot, m = comm.allreduce(vectors @ vectors.T), len(vectors) // 2
    by, alpha = -np.eye(2 * m + 1)[-1], np.zeros(m)  # the step is the sum of by[j] times vector j
    for i in reversed(range(m)):
        alpha[i] = by @ dot[i] / dot[i, m + i]
        by[m + i] -= alpha[i]
    if m:
        by *= dot[m - 1, 2 * m - 1] / dot[2 * m - 1, 2 * m - 1]
    for i in range(m):
        by[i] += alpha[i] - by @ dot[m + i] / dot[i, m + i]
    return by @ vectors


def fit(comm: hocket.Communicator, rows: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, list[float]]:
    weights, steps, gradients, losses = np.zeros(WEIGHTS), [], [], []
    for _ in range(STEPS):
        score = rows @ weights
        losses.append(comm.allreduce(np.logaddexp(0, score).sum() - labels @ score) / ROWS)
        gradients = [*gradients, comm.reduce_scatter((1 / (1 + np.exp(-score)) - labels) @ rows / ROWS)][-KEPT - 1 :]
        move = direction(comm, np.array([*steps, *np.diff(gradients, axis=0), gradients[-1]]))
        weights, steps = weights + comm.allgather(move), [*steps, move][-KEPT:]
    return weights, losses


if __name__ == "__main__":
    with hocket.init() as comm:
        rows, labels = data()  # of which a rank takes each comm.size-th
        weights, losses = fit(comm, rows[comm.rank :: comm.size], labels[comm.rank :: comm.size])
        off = np.abs(weights - fit(comm.split(comm.rank), rows, labels)[0]).max()  # a job of one rank
        if comm.rank == 0:
            print("\n".join(f"step {step}: loss {loss:.4f}" for step, loss in enumerate(losses)))
            print(f"weights by {comm.size} ranks: as by one (largest difference {off:.0e})")
