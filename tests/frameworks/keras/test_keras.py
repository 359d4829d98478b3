"""hocket.keras on the backend that KERAS_BACKEND names, on real ranks (make test-keras: on each of the three)."""

from __future__ import annotations

import os
from pathlib import Path

import keras
import pytest

from support import jobs

BACKEND = keras.backend.backend()
HERE = Path(__file__).parent
PATH = os.pathsep.join([jobs.SOURCES, jobs.TESTS, str(HERE)])


def ranks(name: str, size: int = 2, seconds: float = 100.0) -> list[str]:
    """Run a program of cases.py on all ranks."""
    source = f"import cases\ncases.run({name!r})\n"
    return jobs.run(size, source, seconds, PYTHONPATH=PATH, KERAS_BACKEND=BACKEND, TF_NUM_INTRAOP_THREADS="1")


@pytest.mark.parametrize("size", [2, 4])
def test_as_one_process_with_the_whole_batch(size: int) -> None:
    ranks("whole_batch", size)


def test_other_frameworks_are_not_imported() -> None:
    others = {"tensorflow", "jax", "torch"} - {BACKEND}
    source = "import sys, hocket.keras as hk; hk.cause(ValueError()); print(sorted(set(sys.modules)))"
    said = jobs.run(1, source, KERAS_BACKEND=BACKEND)[0]
    found = {name.strip("' ") for name in said.strip("[]\n").split(",")}
    ours = {name for name in found if name.startswith("hocket.") and name.split(".")[1] in others}
    assert not ours and not [name for name in found if name in {f"hocket.keras.backends.{each}" for each in others}]
