"""One function on all ranks, over any transport: threads of this process, or real processes."""

from __future__ import annotations

import importlib.util
import inspect
import os
from collections.abc import Callable
from typing import Any

import harness

import hocket
from hocket.collectives import threads
from hocket.collectives.communicator import Communicator

TESTS = os.path.dirname(os.path.abspath(__file__))
SOURCES = os.path.dirname(os.path.dirname(os.path.abspath(hocket.__file__)))
PATH = os.pathsep.join([SOURCES, TESTS, os.path.join(TESTS, "collectives")])
"""Where a rank's process finds hocket and the test files."""
THREADS = ("threads", "reference")


def kernel_oracle() -> Any:
    """tests/kernels/oracle.py: what a reduction must give, in NumPy."""
    spec = importlib.util.spec_from_file_location("oracle", os.path.join(TESTS, "kernels", "oracle.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RANK = """
import hocket
from {module} import {name}
with hocket.init(transport={transport!r}) as comm:
    {name}(comm)
"""


def spread(
    function: Callable[[Communicator], Any], size: int, transport: str, seconds: float = 100.0, **env: str
) -> None:
    """Run `function(comm)`, a top-level function of a test file, on `size` ranks; it asserts."""
    if transport in THREADS:
        with hocket.local_world(size, transport) as world:
            world.run(function)
        return
    module = inspect.getmodulename(inspect.getfile(function))
    source = RANK.format(module=module, name=function.__name__, transport=transport)
    harness.run(size, source, seconds, PYTHONPATH=PATH, **env)


def in_threads(*functions: Callable[[], None]) -> None:
    """Call each in a thread of its own; the first error is raised."""
    threads.in_threads(lambda function: function(), functions)


def same(got: Any, wanted: Any, what: str) -> None:
    """Assert equal arrays (equal bits), with a text that tells where they differ."""
    import numpy as np

    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.shape == wanted.shape, f"{what}: shape {got.shape}, wanted {wanted.shape}"
    assert got.dtype == wanted.dtype, f"{what}: dtype {got.dtype}, wanted {wanted.dtype}"
    if got.tobytes() != wanted.tobytes():
        pairs = zip(got.ravel(), wanted.ravel(), strict=True)
        wrong = [i for i, (a, b) in enumerate(pairs) if a.tobytes() != b.tobytes()]
        first = wrong[0]
        raise AssertionError(
            f"{what}: {len(wrong)} of {got.size} elements differ, the first at {first}: "
            f"{got.ravel()[first]}, wanted {wanted.ravel()[first]}"
        )
