"""k-means: every rank has points of its own, and all have the same centres.

    hocket run -n 4 examples/kmeans.py

A step needs one allreduce, of k rows: the sum of the points next to each centre, and how many they are.
"""

import numpy as np

import hocket

POINTS, CENTRES, STEPS = 6000, 5, 15
TRUE = np.array([[0, 0], [6, 0], [0, 6], [6, 6], [3, 12]], float)


def points() -> np.ndarray:
    """All points, the same on every rank: around the true centres."""
    random = np.random.default_rng(1)
    return TRUE[random.integers(CENTRES, size=POINTS)] + random.normal(size=(POINTS, 2))


def step(comm: hocket.Communicator, mine: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, float]:
    """The next centres, and the mean squared distance to the present ones."""
    squares = ((mine[:, None] - centres) ** 2).sum(axis=2)
    nearest = squares.argmin(axis=1)
    sums = np.zeros((CENTRES, 4))  # of x, of y, how many, of squared distances
    np.add.at(sums, nearest, np.column_stack([mine, np.ones(len(mine)), squares.min(axis=1)]))
    comm.allreduce(sums)
    count = np.maximum(sums[:, 2:3], 1)
    return np.where(sums[:, 2:3] > 0, sums[:, :2] / count, centres), sums[:, 3].sum() / POINTS


def main() -> None:
    with hocket.init() as comm:
        everything = points()
        mine = np.array_split(everything, comm.size)[comm.rank]
        centres = everything[:CENTRES].copy() if comm.rank == 0 else np.empty((CENTRES, 2))
        comm.broadcast(centres)
        for number in range(STEPS):
            centres, error = step(comm, mine, centres)
            if comm.rank == 0 and number % 5 == 4:
                print(f"step {number + 1:2}: mean squared distance {error:.3f}")
        same = comm.allgather(centres[None])
        assert (same == centres).all(), "all ranks have the same centres, to the bit"
        if comm.rank == 0:
            sizes = ", ".join(f"({x:.2f}, {y:.2f})" for x, y in sorted(centres.tolist()))
            print(f"centres on {comm.size} ranks: {sizes}")


if __name__ == "__main__":
    main()
