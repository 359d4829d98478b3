"""hocket beside LightGBM's own sockets: seconds of `lightgbm.train`, the same rows, the same model.

    hocket run -n 2 -- python -m hocket.lab.frameworks.lightgbm_training

The two take turns (A B A B ...) in the same processes; the slower rank counts, and the table has the medians, and the
range of the ratios of neighbours.  Bins, which are found once before, and the making of connections are not counted.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from typing import Any

import lightgbm as lgb
import numpy as np

import hocket
import hocket.lightgbm
from hocket.system.cores import processor
from hocket.system.machine import free_port

TURNS = 7
CASES = {"narrow": (20_000, 20, 31), "wide": (20_000, 500, 31), "many leaves": (20_000, 50, 255)}
"""Rows of each rank, columns, leaves."""
ROUNDS = {"narrow": 40, "wide": 10, "many leaves": 15}


@contextlib.contextmanager
def over_hocket(comm: Any) -> Iterator[None]:
    with hocket.lightgbm.setup(comm):
        yield


@contextlib.contextmanager
def over_sockets(comm: Any) -> Iterator[None]:
    """Do once what `machines=` in the parameters does."""
    ports = comm.allgather_object(free_port("127.0.0.1")[1])
    machines = ",".join(f"127.0.0.1:{port}" for port in ports).encode()
    library = lgb.basic._LIB
    assert library.LGBM_NetworkInit(machines, ports[comm.rank], 2, comm.size) == 0, library.LGBM_GetLastError()
    try:
        yield
    finally:
        library.LGBM_NetworkFree()


NETWORKS = {"hocket": over_hocket, "sockets": over_sockets}


def turn(comm: Any, name: str, network: Any, params: dict[str, Any], x: Any, y: Any) -> tuple[float, str]:
    """Seconds of the slowest rank, and the model."""
    with network(comm):
        data = lgb.Dataset(x, y, params=params).construct()
        booster = lgb.Booster(params, data)
        comm.barrier()
        start = time.perf_counter()
        for _ in range(ROUNDS[name]):
            booster.update()
        seconds = time.perf_counter() - start
        text = booster.model_to_string().partition("\nparameters:")[0]
    return float(comm.allreduce(seconds, "max")), text


def main() -> None:
    comm = hocket.init()
    if comm.rank == 0:
        print(processor(), f"{comm.size} ranks, LightGBM {lgb.__version__}")
        print("\n| | hocket s | sockets s | x faster | range |\n|---|---|---|---|---|")
    for name, (count, columns, leaves) in CASES.items():
        random = np.random.default_rng(comm.rank)
        x = random.standard_normal((count, columns))
        y = x[:, 0] * 2 + x[:, 1] ** 2 + random.standard_normal(count)
        params = {
            "objective": "regression", "verbosity": -1, "num_threads": 1, "num_leaves": leaves, "tree_learner": "data",
            "num_machines": comm.size, "pre_partition": True,
        }  # fmt: skip
        found: dict[str, list[float]] = {each: [] for each in NETWORKS}
        models = set()
        for _ in range(TURNS):
            for each, network in NETWORKS.items():
                seconds, model = turn(comm, name, network, params, x, y)
                found[each].append(seconds)
                models.add(model)
        assert len(models) == 1, "the two networks made different models"
        ours, theirs = found["hocket"], found["sockets"]
        ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
        if comm.rank == 0:
            print(
                f"| {count} x {columns} a rank, {leaves} leaves | {statistics.median(ours):.2f} | "
                f"{statistics.median(theirs):.2f} | {statistics.median(ratios):.2f} | "
                f"{min(ratios):.2f} to {max(ratios):.2f} |", flush=True
            )  # fmt: skip
    comm.close()


if __name__ == "__main__":
    main()
