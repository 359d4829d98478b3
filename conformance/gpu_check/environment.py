"""The check's surroundings; and what of torch's and CuPy's memory other processes may map."""

from __future__ import annotations

import ctypes
import importlib
import os
import subprocess
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from hocket.conformance.gpu_check.driver import (
    COMPUTE_MODE,
    IPC_EVENTS,
    L2_BYTES,
    LEGACY_IPC,
    MEMOPS,
    MPS,
    RANGE_SIZE,
    RANGE_START,
    Gpu,
)
from hocket.conformance.gpu_check.findings import Finding, Options, say, size_text
from hocket.conformance.gpu_check.kinds import CUPY, missing, version
from hocket.conformance.gpu_check.processes import job, together
from hocket.errors import Error
from hocket.system.cuda import nvrtc

MODES = {0: "shared by processes", 1: "one thread only", 2: "prohibited", 3: "one process only"}
PACKAGES = {
    "torch": ("torch",), "CuPy": CUPY, "NCCL": ("nvidia-nccl-cu13", "nvidia-nccl-cu12"), "ml_dtypes": ("ml_dtypes",),
    "package of NVRTC": ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu13", "nvidia-cuda-nvrtc-cu12"),
}  # fmt: skip


def environment(options: Options) -> Iterator[Finding]:
    gpu = Gpu()
    major, minor = gpu.device.capability
    note = f"compute capability {major}.{minor}, {gpu.multiprocessors} multiprocessors"
    yield Finding("GPU", gpu.device.name, note=note)
    driver = gpu.out(ctypes.c_int, "cuDriverGetVersion")
    yield Finding("CUDA of the driver", f"{driver // 1000}.{driver % 1000 // 10}")
    yield Finding("nvidia-smi", "", note=_smi())
    for name, which, wanted in (
        ("IPC events", IPC_EVENTS, 1), ("stream memory operations", MEMOPS, None), ("MPS", MPS, None)
    ):  # fmt: skip
        found = _attribute(gpu, which)
        yield Finding(name, {0: "no", 1: "yes"}.get(found, "unknown"), ok=None if wanted is None else found != 0)
    mode = _attribute(gpu, COMPUTE_MODE)
    yield Finding("compute mode", MODES.get(mode, "unknown"), ok=mode in (-1, 0))
    cache = _attribute(gpu, L2_BYTES)
    yield Finding("L2 cache", size_text(cache) if cache > 0 else "unknown")
    yield Finding("NVRTC", "", note=_nvrtc())
    for name, packages in PACKAGES.items():
        yield Finding(name, version(*packages) or "not installed")
    for kind in ("cupy", "torch"):
        yield Finding(f"arrays of {kind}", missing(kind) or "yes")


def _attribute(gpu: Gpu, which: int) -> int:
    try:
        return gpu.attribute(which)
    except Error:
        return -1


def _smi() -> str:
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.mem,clocks.sm", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.strip() or "says nothing"
    except (OSError, subprocess.TimeoutExpired) as why:
        return type(why).__name__


def _nvrtc() -> str:
    try:
        library, numbers = nvrtc.library(), (ctypes.c_int(), ctypes.c_int())
        library.nvrtcVersion(ctypes.byref(numbers[0]), ctypes.byref(numbers[1]))
    except (Error, AttributeError) as why:
        return f"none: {why}"
    return f"{numbers[0].value}.{numbers[1].value}"


# ------------------------------------------------------------------------------------------------ memory


def _place(gpu: Gpu, name: str, address: int) -> Finding:
    """Whether other processes may map what lies there, and where in its allocation that is."""
    try:
        legacy = gpu.pointer(LEGACY_IPC, address) & 1
        start, size = gpu.pointer(RANGE_START, address), gpu.pointer(RANGE_SIZE, address)
    except Error as why:
        return Finding(name, "unknown", note=str(why))
    note = f"{address - start} bytes into an allocation of {size_text(size)}"
    return Finding(name, "may be mapped" if legacy else "may not be mapped", note=note)


def _of_cupy() -> None:
    gpu, cupy = Gpu(), importlib.import_module("cupy")  # type: tuple[Gpu, Any]
    arrays = [cupy.empty(1000, np.float32) for _ in range(3)]
    say(_place(gpu, "CuPy, the default pool's third array", arrays[2].data.ptr))
    held = cupy.cuda.MemoryAsyncPool().malloc(1 << 20)
    say(_place(gpu, "CuPy, MemoryAsyncPool", held.ptr))


def _of_torch(name: str, setting: str) -> None:
    # Both names: which is read depends on the version.
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = setting
    gpu, torch = Gpu(), importlib.import_module("torch")  # type: tuple[Gpu, Any]
    tensor = torch.empty(5_000_000, device="cuda")[1000:]
    say(_place(gpu, name, tensor.data_ptr()))


def _reduce_expandable(comm: Any, options: Options) -> None:
    torch: Any = importlib.import_module("torch")
    wrong = 0
    for count in (2048, 5_000_000):
        x = torch.full((count,), comm.rank + 1.0, device="cuda")
        comm.allreduce(x, timeout=20)
        wrong += int((x != comm.size * (comm.size + 1) / 2).sum().item())
    if comm.rank == 0:
        say(Finding("allreduce of tensors in expandable segments", f"{wrong} wrong", ok=wrong == 0))


def memory(options: Options) -> Iterator[Finding]:
    yield _place(gpu := Gpu(), "cuMemAlloc, as hocket's windows", gpu.alloc(1 << 20))
    if why := missing("cupy"):
        yield Finding("CuPy's memory", "not checked", note=why)
    else:
        yield from together("CuPy's memory", [_of_cupy], 20)
    if why := missing("torch"):
        yield Finding("torch's memory", "not checked", note=why)
        return
    for name, setting in (
        ("torch, the usual allocator", "expandable_segments:False"),
        ("torch, expandable segments", "expandable_segments:True"),
        ("torch, cudaMallocAsync", "backend:cudaMallocAsync"),
    ):
        yield from together(name, [partial(_of_torch, name, setting)], 20)
    setting = "expandable_segments:True"
    yield from job("expandable segments", 2, _reduce_expandable, options, 30,
                   PYTORCH_CUDA_ALLOC_CONF=setting, PYTORCH_ALLOC_CONF=setting)  # fmt: skip
