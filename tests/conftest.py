"""What every test may rely on, however the test run itself was started."""

import os
import signal
from pathlib import Path

import pytest

# A shell that starts its jobs in the background hands SIGINT on as ignored, and ranks would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What somebody has measured on this machine must not decide what a test runs.
os.environ["HOCKET_TUNING"] = "off"


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-ins for the CUDA driver and compiler, and the kernels."""
    import gpu_ranks

    return gpu_ranks.build(tmp_path_factory.mktemp("stand-ins"))


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stand-in for libcuda.so.1."""
    import stand_in_cuda

    return stand_in_cuda.build(tmp_path_factory.mktemp("stand-in")).parent
