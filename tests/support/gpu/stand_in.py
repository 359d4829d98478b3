"""The stand-in for libcuda.so.1: how it is built, and the environment of a process that finds it."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from support.compiled import compiled

ROOT = Path(__file__).parents[3]
SOURCES = sorted((ROOT / "tests" / "system" / "cuda" / "fake_cuda").glob("*.c"))
COMPILER = "libnvrtc.so.13"
FLAGS = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-fPIC", "-shared"]


def build(folder: Path, *flags: str) -> Path:
    """libcuda.so.1 in `folder`."""
    name = "libcuda.so.1"
    return compiled(folder / name, SOURCES, *FLAGS, *flags, f"-I{ROOT}", f"-Wl,-soname,{name}", "-lpthread")


def compiler(folder: Path) -> Path:
    """The stand-in for the compiler, in `folder`."""
    source = ROOT / "tests" / "system" / "cuda" / "fake_nvrtc.c"
    return compiled(folder / COMPILER, [source], "-O1", "-fPIC", "-shared", f"-Wl,-soname,{COMPILER}")


def nccl(folder: Path, driver: Path) -> Path:
    """The stand-in for NCCL, over that for the driver."""
    name = "libnccl.so.2"
    source = ROOT / "tests" / "system" / "cuda" / "fake_nccl.c"
    return compiled(folder / name, [source, driver], *FLAGS, "-fvisibility=default", f"-I{ROOT}", f"-Wl,-soname,{name}")


@contextlib.contextmanager
def machine(library: Path, emulator: Path | None = None, **knobs: int | str) -> Iterator[dict[str, str]]:
    """The environment of processes that share these devices; what is left of their memory goes with it."""
    # Memory is written to no disk, where there is a place for that.
    place = tempfile.mkdtemp(prefix="hocket-cuda-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    path = os.pathsep.join([str(library.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    settings = ",".join(f"{name}={value}" for name, value in knobs.items())
    env = {**os.environ, "LD_LIBRARY_PATH": path, "FAKE_CUDA_DIR": place, "FAKE_CUDA": settings,
           "HOCKET_GPU": "on"}  # fmt: skip
    if emulator is not None:
        env["FAKE_CUDA_EMULATOR"] = str(emulator)
    try:
        yield env
    finally:
        shutil.rmtree(place)
