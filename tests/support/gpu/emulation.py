"""The CUDA kernels on this CPU: builds the emulator (tests/kernels/gpu/emulator) around them, and calls it.

g++ must be there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hocket.kernels.gpu import launch
from hocket.kernels.gpu.catalogue import Kernel, Module
from support.compiled import compiled

ROOT = Path(__file__).parents[3]
EMULATOR = ROOT / "tests" / "kernels" / "gpu" / "emulator"
RUNTIME = ("fiber.cpp", "scheduler.cpp", "interface.cpp")
# No contraction of a product and a sum, as on the GPU.  What is a buffer of bytes here changes its type there.
FLAGS = ("-std=c++17", "-ffp-contract=off", "-fno-strict-aliasing", "-fPIC", "-Wall", "-Wextra", "-Werror")
OK, UNKNOWN, GEOMETRY, DEADLOCK, BARRIER = range(5)

Array = np.ndarray[Any, Any]


def source(modules: Iterable[Module]) -> str:
    """A C++ file with all of `modules` in it."""
    out = ["#define HK_EMULATOR <dialect.h>"]
    for module in modules:
        out += [f"#define {name} {value}" for name, value in module.defines]
        out += [f'#include "kernels/gpu/{module.file}"']
        out += [f"#undef {name.partition('(')[0]}" for name, _ in module.defines]
    return "\n".join(out) + "\n"


def compile_objects(
    folder: Path, files: Sequence[Path], flags: Sequence[str], include: Path | None = None
) -> list[Path]:
    """The objects of C++ files; `include` is the folder in which kernels/ is looked for first."""
    folders = [f"-I{path}" for path in (include, EMULATOR, ROOT / "src" / "hocket") if path]
    options = [*FLAGS, *flags, *folders, "-c"]
    return [compiled(folder / f"{file.stem}.o", [file], *options, compiler="g++") for file in files]


def link(target: Path, objects: Sequence[Path], flags: Sequence[str]) -> Path:
    return compiled(target, objects, *flags, compiler="g++")


def build(folder: Path, modules: Iterable[Module], flags: Sequence[str] = ("-O0",)) -> Path:
    """The shared library of some modules."""
    generated = folder / "modules.cpp"
    generated.write_text(source(modules))
    objects = compile_objects(folder, [generated, *(EMULATOR / name for name in RUNTIME)], flags)
    return link(folder / "emulated.so", objects, [*flags, "-shared"])


class Emulator:
    """The shared library of some modules, and launches in the way of a driver: names, grids, addresses."""

    def __init__(self, folder: Path, modules: Iterable[Module], flags: Sequence[str] = ("-O0",)) -> None:
        self._library = ctypes.CDLL(str(build(folder, modules, flags)))

    def loops(self, kernel: Kernel, grid: int, block: int, *values: Any) -> int:
        params, kept = launch.arguments(kernel, *values)
        return int(self._library.emu_loops(kernel.name.encode(), grid, block, params))

    def launch(self, kernel: Kernel, grid: int, block: int, *values: Any, seed: int = 1) -> int:
        params, kept = launch.arguments(kernel, *values)
        return int(self._library.emu_launch(kernel.name.encode(), grid, block, params, seed))

    def submit(self, kernel: Kernel, grid: int, block: int, *values: Any, stream: int) -> int:
        params, kept = launch.arguments(kernel, *values)
        return int(self._library.emu_submit(kernel.name.encode(), grid, block, params, stream))

    def run(self, seed: int = 1) -> int:
        return int(self._library.emu_run(seed))


class Buffer:
    """Bytes that start `offset` past a multiple of 64, with 64 guard bytes at either end."""

    GUARD = 64

    def __init__(self, nbytes: int, offset: int = 0, fill: int = 0xA5) -> None:
        self._room = np.full(nbytes + offset + 3 * self.GUARD, fill, np.uint8)
        start = -self._room.ctypes.data % 64 + self.GUARD + offset
        self._fill, self._start, self._end = fill, start, start + nbytes
        self.bytes = self._room[start : self._end]
        self.address = int(self._room.ctypes.data) + start

    @classmethod
    def of(cls, x: Array, offset: int = 0) -> Buffer:
        """A copy of `x`."""
        buffer = cls(x.nbytes, offset)
        buffer.bytes[:] = np.frombuffer(x.tobytes(), np.uint8)
        return buffer

    def as_array(self, dtype: Any) -> Array:
        return self.bytes.view(dtype)

    def is_intact(self) -> bool:
        """Nothing was written around it."""
        return bool((self._room[: self._start] == self._fill).all() and (self._room[self._end :] == self._fill).all())


def modules_of(kernels: Iterable[Kernel]) -> list[Module]:
    return list(dict.fromkeys(kernel.module for kernel in kernels))
