"""These tests run in the guest (run.sh): `make test-verbs`."""

import os
import sys

import pytest

if not os.path.isdir("/run/guest"):
    pytest.exit("these tests need a guest with RDMA devices: make test-verbs", 2)

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy is imported: ranks are forked from this process
SIBLINGS = ("collectives", "waiting"), ("collectives", "arrays"), ("jobs",)
"""Folders whose tests are run here too."""
here = os.path.dirname(os.path.abspath(__file__))
sys.path.append("/usr/lib/python3/dist-packages")  # pyverbs, which is Debian's and for its Python (fill.sh)
sys.path[:0] = [here, *(os.path.join(os.path.dirname(here), *each) for each in SIBLINGS)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:  # what bounds a test here is how long its jobs may take (forked.py)
        item.add_marker(pytest.mark.timeout(400))
