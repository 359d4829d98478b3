"""The fixtures that Ray's tests ask for by name: one Ray, and one job of it, for all tests.  (driver.py)"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pool
import pytest
import ray
from ray.cluster_utils import Cluster

import hocket.ray

NODES = int(os.environ["RAY_SUITE_NODES"])
TRANSPORT = {"HOCKET_TRANSPORT": "tcp"} if NODES > 1 else {}  # the nodes are on one machine in truth


def started() -> Any:
    """Ray gives a node 30 s to start, which is short on a busy machine."""
    for turn in range(5):
        try:
            made = Cluster(initialize_head=True, head_node_args={"num_cpus": 8, "include_dashboard": False})
            for _ in range(NODES - 1):
                made.add_node(num_cpus=8)
            return made
        except Exception as why:
            print(f"Ray did not start ({turn}): {why}")
            ray.shutdown()
    raise AssertionError("Ray did not start in five turns")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    made = started()
    hocket.ray.register()
    yield made
    made.shutdown()


@pytest.fixture(scope="session")
def job(cluster: Any) -> Iterator[None]:
    """The actors' processes learn the backend's name by the hook, as the tests do not say it to them."""
    env = {"env_vars": {"OMP_NUM_THREADS": "1", **TRANSPORT}, "worker_process_setup_hook": "hocket.ray.register"}
    ray.init(address=cluster.address, runtime_env=env, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def actors(job: None) -> Iterator[None]:
    """They are given back when the test ends."""
    yield
    pool.give_back()


@pytest.fixture
def ray_start_single_node(actors: None) -> None:
    """Fixture of the tests on one node."""


@pytest.fixture
def ray_start_distributed_2_nodes(actors: None) -> None:
    """Fixture of the tests on two nodes."""
