"""Least squares on the workers of a Dask cluster: each makes rows of its own, and all add up their sums with hocket.

python dask_run.py                          a cluster of two processes on this machine
python dask_run.py tcp://10.0.0.1:8786      a cluster that runs
"""

import sys

import distributed
import numpy as np

import hocket.dask

TRUE = np.array([3.0, -2.0, 0.5])


def fit(comm, rows):
    """This rank's part; every rank returns the same weights."""
    random = np.random.default_rng(comm.rank)
    x = random.normal(size=(rows, len(TRUE)))
    y = x @ TRUE + random.normal(scale=0.1, size=rows)
    sums = np.column_stack([x.T @ x, x.T @ y])  # small, however many rows there are
    comm.allreduce(sums)
    return np.linalg.solve(sums[:, :-1], sums[:, -1])


def main():
    where = sys.argv[1] if len(sys.argv) > 1 else distributed.LocalCluster(n_workers=2, threads_per_worker=1)
    with distributed.Client(where) as client:
        weights = hocket.dask.run(client, fit, 100_000)
        assert all((each == weights[0]).all() for each in weights)
        print(f"{len(weights)} workers found {weights[0].round(3)}, true are {TRUE}")


if __name__ == "__main__":
    main()
