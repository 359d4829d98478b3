"""Logistic regression by Newton's method: every rank has rows of its own.

    hocket run -n 4 examples/logistic.py

Gradient, Hessian and loss are sums over rows: one allreduce a step, and every rank solves the same small system.
"""

import numpy as np

import hocket

ROWS, FEATURES, STEPS = 20_000, 12, 7


def data() -> tuple[np.ndarray, np.ndarray]:
    """All rows, the same on every rank, and the label of each: yes or no."""
    random = np.random.default_rng(7)
    rows = random.normal(size=(ROWS, FEATURES))
    rows[:, 0] = 1.0  # the constant
    truth = np.linspace(-1.5, 1.5, FEATURES)
    return rows, (random.random(ROWS) < 1 / (1 + np.exp(-rows @ truth))).astype(float)


def sums(rows: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Sums over these rows: the Hessian, below it the gradient, below that the loss and how many were labelled rightly.
    """
    score = rows @ weights
    chance = 1 / (1 + np.exp(-score))
    last = np.zeros((1, FEATURES))
    last[0, :2] = np.logaddexp(0, score).sum() - labels @ score, ((score > 0) == (labels > 0.5)).sum()
    return np.vstack([(rows.T * (chance * (1 - chance))) @ rows, (labels - chance) @ rows, last])


def fit(comm: hocket.Communicator, rows: np.ndarray, labels: np.ndarray, say: bool) -> np.ndarray:
    weights = np.zeros(FEATURES)
    for step in range(STEPS):
        total = comm.allreduce(sums(rows, labels, weights))
        weights += np.linalg.solve(total[:FEATURES], total[FEATURES])
        if say:
            loss, right = total[-1, :2] / ROWS
            print(f"step {step}: loss {loss:.4f}, {right:.1%} right")
    return weights


def main() -> None:
    with hocket.init() as comm:
        rows, labels = data()
        part = slice(ROWS * comm.rank // comm.size, ROWS * (comm.rank + 1) // comm.size)
        weights = fit(comm, rows[part], labels[part], comm.rank == 0)
        alone = comm.split(comm.rank)  # a job of one rank
        assert alone is not None
        off = np.abs(weights - fit(alone, rows, labels, False)).max()
        if comm.rank == 0:
            print(f"weights by {comm.size} ranks: as by one (largest difference {off:.0e})")


if __name__ == "__main__":
    main()
