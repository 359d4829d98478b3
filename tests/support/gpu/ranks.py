"""A job of ranks on the stand-in driver: what the ranks do (the upper half), and how a test starts them."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hocket
from hocket.kernels.codecs import HALVES
from hocket.kernels.gpu import catalogue
from hocket.system.cuda import driver as transport
from hocket.system.cuda import nvrtc
from support import faulty
from support.faulty import say
from support.gpu import beside_numpy as gpu_oracle
from support.gpu import codecs as gpu_codecs
from support.gpu import emulation
from support.gpu import stand_in as stand_in_cuda
from support.jobs import Job

OWNED = ("allocations", "bytes", "pinned", "ipc_maps", "events", "ipc_events_open", "streams")
"""Objects of the driver's that a communicator makes, and must give back."""


def driver() -> ctypes.CDLL:
    """The stand-in, which the process has opened by hocket."""
    library = ctypes.CDLL("libcuda.so.1")
    library.fake_get.restype = ctypes.c_long
    return library


def count(name: str) -> int:
    found = int(driver().fake_get(name.encode()))
    if name == "streams":  # without the spare ones, which are kept
        found -= sum(len(device.spare) for device in transport._devices.values())
    return found


def knob(name: str, value: int) -> None:
    assert driver().fake_set(name.encode(), ctypes.c_long(value)) == 0


def refuse(function: str, nth: int, status: int = 2) -> None:
    """So many calls of this function from now, one fails; nth < 0: that one and all after it."""
    driver().fake_refuse(function.encode(), ctypes.c_long(nth), status)


def left() -> dict[str, int]:
    """Objects of the driver's that hocket has made, and not given back."""
    gc.collect()
    return {name: count(name) for name in (*OWNED, "misuses") if count(name)}


def take_compiler() -> None:
    """By its path: by its name a process gets the real one where torch has loaded that."""
    nvrtc.NAMES = (f"{os.environ['LD_LIBRARY_PATH'].partition(os.pathsep)[0]}/{stand_in_cuda.COMPILER}",)


@contextlib.contextmanager
def alone() -> Iterator[Any]:
    """The communicator of the job; when it is closed nothing may be left."""
    with hocket.init() as comm:
        yield comm
    assert left() == {}, left()
    say(done=True)


# --------------------------------------------------------------------------------------------- in the test


def build(folder: Path) -> Path:
    """The stand-ins for the driver and the compiler, and the kernels that beside_numpy.py uses."""
    stand_in_cuda.nccl(folder, stand_in_cuda.build(folder))
    stand_in_cuda.compiler(folder)
    kernels = [catalogue.reduce(dtype, op) for dtype, ops in gpu_oracle.KERNELS.items() for op in ops]
    kernels += [catalogue.scale(dtype) for dtype in gpu_oracle.KERNELS]
    kernels += [catalogue.reduce_by(*each) for each in gpu_oracle.EXPRESSIONS.items()]
    kernels += [kernel for each in gpu_oracle.MEETING for kernel in catalogue.shots(*each)]
    kernels += [*catalogue.shots_by("float32", gpu_oracle.EXPRESSIONS["float32"]), catalogue.BARRIER]
    for codec in gpu_codecs.BLOCKS:
        kernels += [*catalogue.coders(codec), *catalogue.keepers(codec)]
    kernels += [catalogue.cast(*ends) for half in HALVES for ends in (("float32", half), (half, "float32"))]
    emulation.build(folder, emulation.modules_of(kernels), ("-O1",))
    return folder


HEAD = """
import os
from support.gpu import ranks as gpu_ranks
from support.gpu import beside_numpy as gpu_oracle
from support.gpu.ranks import alone, left
from support.gpu.arrays import GpuArray, put
from hocket.system.cuda import driver as cuda
gpu_ranks.take_compiler()
"""
"""The beginning of a rank's program, after what faulty.job puts before it."""


@contextlib.contextmanager
def machine(built: Path, **knobs: int | str) -> Iterator[dict[str, str]]:
    """The environment that ranks need to share the stand-in's GPUs."""
    keep = ("HOCKET_GPU", "LD_LIBRARY_PATH", "FAKE_CUDA", "FAKE_CUDA_DIR", "FAKE_CUDA_EMULATOR")
    with stand_in_cuda.machine(built / "libcuda.so.1", built / "emulated.so", **knobs) as env:
        yield {name: env[name] for name in keep}


@contextlib.contextmanager
def job(built: Path, size: int, source: str, where: Path, **knobs: int | str) -> Iterator[Job]:
    """Ranks of this host; `where` is as in faulty.job."""
    with machine(built, **knobs) as env, faulty.job(size, HEAD + source, where, env) as made:
        yield made


def run(
    built: Path, size: int, source: str, where: Path, seconds: float = 90, **knobs: int | str
) -> list[dict[str, Any]]:
    """The words of the ranks; all must end well, and none may have misused the driver."""
    with job(built, size, source, where, **knobs) as started:
        ends = started.wait(seconds)
    for end in ends:
        assert end.code == 0 and "fake cuda:" not in end.err, f"{end.code}\n{end.err[-4000:]}\n{end.out[-2000:]}"
    return [{k: v for line in end.out.splitlines() for k, v in json.loads(line).items()} for end in ends]


if __name__ == "__main__":
    build(Path(sys.argv[1]))
