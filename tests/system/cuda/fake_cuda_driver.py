"""The stand-in for the CUDA driver from Python: its knobs and counts, and what every test over it checks.

A pytest plugin of the process that test_fake_cuda.py starts, where the stand-in is libcuda.so.1.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest

from support.gpu.driver import NUMBERS, Driver
from support.gpu.roles import SIZE

CUDA = Driver()
CONTEXT = CUDA.begin()
SPAWN = multiprocessing.get_context("spawn")
KNOBS = {"delay": 0, "devices": 2, "first_device": 0, "peers": 1, "pool": 0, "reuse": 0, "ipc": 1, "memops": 1,
         "capturing": 0, "fault_at": 0, "refuse_sticky": 0, "dead": 0, "room": 1 << 40, "ipc_events": 1}  # fmt: skip
KINDS = ("double_free", "use_after_free", "freed_while_mapped", "out_of_range", "early_destroy", "unreachable",
         "bad_handle")  # fmt: skip
LIVING = ("contexts", "allocations", "bytes", "pinned", "ipc_maps", "events", "ipc_events_open", "streams", "modules")
BUSY = 600
HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Whatever a test makes it must unmake, and it must say what it does wrong."""
    CUDA.set(**KNOBS, misuses=0, **dict.fromkeys(KINDS, 0))
    before = {name: CUDA.get(name) for name in LIVING}
    yield
    CUDA.refuse("", 0, 0)
    CUDA.set(**KNOBS)
    assert {name: CUDA.get(name) for name in LIVING} == before
    assert CUDA.get("misuses") == sum(CUDA.get(kind) for kind in KINDS) == 0


def wrong(**kinds: int) -> None:
    """These misuses were seen, and no others; they are forgiven."""
    assert {kind: CUDA.get(kind) for kind in KINDS if CUDA.get(kind)} == kinds
    CUDA.set(misuses=0, **dict.fromkeys(KINDS, 0))


def fails(status: str, name: str, *arguments: Any) -> None:
    assert CUDA.status(name, *arguments) == NUMBERS[f"CUDA_ERROR_{status}"], name


@pytest.fixture
def memory() -> Iterator[int]:
    at = CUDA.alloc(SIZE)
    yield at
    CUDA.cuMemFree_v2(at)


@contextlib.contextmanager
def stream(flags: int = 1) -> Iterator[int]:
    made = CUDA.stream(flags)
    try:
        yield made
    finally:
        CUDA.cuStreamSynchronize(made)
        CUDA.cuStreamDestroy_v2(made)


@contextlib.contextmanager
def process(role: Callable[..., None], *arguments: Any, **options: Any) -> Iterator[tuple[Connection, Any]]:
    here, there = SPAWN.Pipe()
    made = SPAWN.Process(target=role, args=(there, *arguments), kwargs=options, daemon=True)
    made.start()
    there.close()
    try:
        yield here, made
        with contextlib.suppress(OSError):
            here.send(("end",))
        made.join(20)
    finally:
        made.kill()
        made.join()
        here.close()


def late(n: int = 20000) -> None:
    """Streams begin each thing up to so many microseconds late."""
    CUDA.set(delay=n)
