"""Heat that spreads over a plate: each rank has some rows, and at each step the edges of its neighbours.

    hocket run -n 4 examples/halo.py

`Grid.exchange` fills the rows around a rank's own ones; the first and the last of all keep the plate's edge.
"""

import numpy as np

import hocket

ROWS, COLUMNS, STEPS = 120, 90, 200


def plate() -> np.ndarray:
    """A hot spot and a warm edge."""
    heat = np.zeros((ROWS, COLUMNS))
    heat[30:50, 20:40] = 100.0
    heat[-1] = 50.0
    return heat


def spread(heat: np.ndarray) -> np.ndarray:
    """One step of the rows between the first and the last; the borders keep their heat."""
    middle = heat[1:-1].copy()
    around = heat[:-2, 1:-1] + heat[2:, 1:-1] + heat[1:-1, :-2] + heat[1:-1, 2:]
    middle[:, 1:-1] += 0.2 * (around - 4 * heat[1:-1, 1:-1])
    return middle


def main() -> None:
    with hocket.init() as comm:
        inner = np.array_split(np.arange(1, ROWS - 1), comm.size)[comm.rank]
        heat = plate()[inner[0] - 1 : inner[-1] + 2]  # one row more on either side
        grid = hocket.Grid(comm, (comm.size,))
        for _ in range(STEPS):
            grid.exchange(heat)
            heat[1:-1] = spread(heat)
        counts = [len(part) for part in np.array_split(np.arange(1, ROWS - 1), comm.size)]
        found = comm.gatherv(heat[1:-1], counts)
        if comm.rank == 0:
            alone = plate()
            for _ in range(STEPS):
                alone[1:-1] = spread(alone)
            same = "the same bits" if np.array_equal(found, alone[1:-1]) else "other bits"
            print(f"{STEPS} steps on {comm.size} ranks: {same} as on one; {found.max():.2f} degrees at most")


if __name__ == "__main__":
    main()
