"""One function on all ranks, over any transport: threads of this process, or real processes."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.collectives.start import local_world
from support import jobs
from support.cases import more
from support.warm import parent

PATH = os.pathsep.join([jobs.SOURCES, jobs.TESTS])
"""Where a rank's process finds hocket and these files."""
THREADS = ("threads", "reference")


Program = Callable[[Communicator], Any]
"""Every rank runs this, and asserts."""
WORLDS: tuple[Any, ...] = (
    (1, "threads"), (2, "shm"), (3, "tcp"),
    *more((4, "shm"), (2, "reference")),
)  # fmt: skip
"""The sizes and transports on which programs run that ask for none."""
RANK = """
import hocket
from {module} import {names}
with hocket.init(transport={transport!r}) as comm:
    for program in ({names},): program(comm)
"""


def path_to(file: str) -> str:
    """PATH, and the folder of this test file."""
    return os.pathsep.join([PATH, os.path.dirname(os.path.abspath(file))])


def spread(
    programs: Program | Sequence[Program], size: int, transport: str, seconds: float = 100.0, **env: str
) -> None:
    """Run `program(comm)`, a top-level function of a test file, or several in turn, on `size` ranks."""
    several = [programs] if callable(programs) else [*programs]
    if transport in THREADS:
        with hocket.local_world(size, transport) as world:
            for program in several:
                world.run(program)
        return
    names = ", ".join(program.__name__ for program in several)
    source = RANK.format(module=_module(several[0]), names=names, transport=transport)
    text = inspect.getsource(inspect.getmodule(several[0]) or several[0])
    if "import torch" in text:  # the rank shall be forked from a process that has what the file imports
        source = f"import torch  # {' '.join(word for word in parent.NEED_DDP if word in text)}\n{source}"
    jobs.run(size, source, seconds, PYTHONPATH=path_to(inspect.getfile(several[0])), **env)


def _module(program: Program) -> str | None:
    """A test file's is not that by which pytest knows it."""
    name = program.__module__
    return name if name.startswith("support.") else inspect.getmodulename(inspect.getfile(program))


def in_threads(*functions: Callable[[], None]) -> None:
    """Call each in a thread of its own; the first error is raised."""
    local_world.in_threads(lambda function: function(), functions)


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
