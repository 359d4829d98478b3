"""The settings that every test may rely on, however the test run itself was started."""

import gc
import os
import signal
from pathlib import Path

import pytest

from support.running.record import function
from support.warm import popen

pytest_plugins = ["support.running.plugin"]

# A shell that starts its jobs in the background hands SIGINT on as ignored, and ranks would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Before NumPy is imported: here many ranks are threads or processes of one machine, and each would take all its cores.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

# What somebody has measured on this machine must not decide what a test runs.
os.environ["HOCKET_TUNING"] = "off"

# Programs that end by os._exit have said what they printed.
os.environ["PYTHONUNBUFFERED"] = "1"


# Benches' own tests that start processes are for `make test-more`, but for these.
KEPT = {"test_two_ranks", "test_bad_arguments_are_named", "test_legends_lie_beside_the_curves"}


@pytest.hookimpl(tryfirst=True)  # before marks select
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    lines = config.pluginmanager.get_plugin("record").lines
    for item in items:
        name = function(item.nodeid)
        if not name.startswith(("tests/bench/", "tests/lab/")) or name.rpartition(":")[2] in KEPT or name not in lines:
            continue
        if lines[name].starts or lines[name].cpu > 1:
            item.add_marker("more")


def pytest_collection_finish() -> None:
    """Freeze what is there now: collecting garbage need not look through torch and five thousand tests each time."""
    popen.install()
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

    return gpu_ranks.build(tmp_path_factory.mktemp("stand-ins"))


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stand-in for libcuda.so.1."""
    from support.gpu import stand_in as stand_in_cuda

    return stand_in_cuda.build(tmp_path_factory.mktemp("stand-in")).parent
