"""What every test may rely on, however the test run itself was started."""

import fcntl
import gc
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

# A shell that starts its jobs in the background hands SIGINT on as ignored, and ranks would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Before NumPy is imported: here many ranks are threads or processes of one machine, and each would take all its cores.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

# What somebody has measured on this machine must not decide what a test runs.
os.environ["HOCKET_TUNING"] = "off"

FIRST = (
    "mpi/test_mpi", "test_conformance", "test_training", "gpu/test_collectives", "test_leaks", "test_fuzz",
    "test_oracle", "jobs/test_hosts", "torch/test_failures", "test_mismatch", "test_bench",
    "failures/test_lost", "test_lost_ranks", "test_chaos", "test_timeout", "examples/test_torch",
    "test_cuda_tensors", "verbs/test_verbs", "test_processes", "test_long", "test_third_party_c", "test_other_ways",
    "test_calls", "test_abuse", "test_rendezvous", "test_async", "torch/test_suite", "test_restarts",
)
"""The files that take longest: they begin first, so that no process is left with one at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((i for i, name in enumerate(FIRST) if name in item.nodeid), len(FIRST)))


def pytest_collection_finish() -> None:
    """What is there now stays: collecting garbage need not look through torch and five thousand tests each time.

    Ranks import from where their programs are, unlike this process (Makefile).
    """
    os.environ.pop("PYTHONSAFEPATH", None)
    gc.collect()
    gc.freeze()


@pytest.fixture
def empty_recorder() -> None:
    """A recorder of its own: the table of texts of this process's may be full of what earlier tests called."""
    from hocket.collectives.recording import recorder

    gc.collect()  # communicators that earlier tests have dropped hold the old one
    recorder.forked()


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-ins for the CUDA driver and compiler, and the kernels."""
    from support.gpu import ranks as gpu_ranks

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
    from support.gpu import stand_in as stand_in_cuda

    return stand_in_cuda.build(tmp_path_factory.mktemp("stand-in")).parent
