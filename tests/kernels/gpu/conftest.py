"""Fixtures of the tests of the CUDA kernels."""

import pytest

from hocket.kernels.gpu import catalogue
from support.gpu.emulation import Emulator, modules_of


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    """Every kernel there is."""
    return Emulator(tmp_path_factory.mktemp("emulator"), modules_of(catalogue.catalogue()))
