"""What the tests of GPU arrays share."""

from pathlib import Path

import gpu_ranks
import pytest


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-ins for the driver and the compiler, and the kernels."""
    return gpu_ranks.build(tmp_path_factory.mktemp("stand-ins"))
