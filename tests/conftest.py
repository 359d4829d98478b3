"""What every test may rely on, however the test run itself was started."""

import fcntl
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

# A shell that starts its jobs in the background hands SIGINT on as ignored, and ranks would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What somebody has measured on this machine must not decide what a test runs.
os.environ["HOCKET_TUNING"] = "off"

FIRST = (
    "verbs/test_verbs", "frameworks/test_examples", "frameworks/test_failures", "test_conformance", "mpi/test_mpi",
    "test_training", "shm/test_ring", "test_leaks", "test_hosts", "gpu/test_collectives", "test_lost_ranks",
    "test_processes", "test_fuzz", "test_chaos", "test_calls", "test_oracle", "test_abuse", "test_floods",
    "test_timeout", "test_third_party_c", "test_torch_suite", "test_pinned", "test_run_signals", "test_encryption",
    "test_sanitized",
)
"""The files that take longest: they begin first, so that no process is left with one at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((i for i, name in enumerate(FIRST) if name in item.nodeid), len(FIRST)))


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-ins for the CUDA driver and compiler, and the kernels."""
    import gpu_ranks

    return once(tmp_path_factory, "stand-ins", gpu_ranks.build)


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder that `make` fills, once for all processes of the test run."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            half = folder.with_suffix(".half")
            half.mkdir()
            make(half)
            half.rename(folder)
    return folder


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stand-in for libcuda.so.1."""
    import stand_in_cuda

    return stand_in_cuda.build(tmp_path_factory.mktemp("stand-in")).parent
