"""The stand-in for the CUDA driver keeps its word about kernels, and about calls and kernels that fail."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator

import pytest
from fake_cuda_driver import CUDA, fails, late, stream, wrong

from support.gpu.driver import NUMBERS, CudaError


@contextlib.contextmanager
def kernel(name: str) -> Iterator[Callable[..., None]]:
    module = CUDA.out(ctypes.c_void_p, "cuModuleLoadData", b"HKFAKE\nsmall")
    function = CUDA.out(ctypes.c_void_p, "cuModuleGetFunction", module, name.encode())

    def launch(*values: int, grid: int = 4, on: int | None = None) -> None:
        words = [ctypes.c_uint64(value) for value in values]
        pointers = (ctypes.c_void_p * len(words))(*map(ctypes.addressof, words))
        CUDA.cuLaunchKernel(function, grid, 1, 1, 64, 1, 1, 0, on, pointers, None)
        for word in words:
            word.value = 0  # they were copied

    try:
        yield launch
    finally:
        CUDA.cuModuleUnload(module)


def ints(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, "little") for value in values)


def test_a_kernel(memory: int) -> None:
    other = CUDA.alloc(1024)
    CUDA.write(memory, ints(*range(100)))
    CUDA.write(other, ints(*range(100)))
    with kernel("add") as add, stream() as s:
        late()
        for _ in range(3):
            add(memory, other, 100, on=s)
        assert CUDA.read(memory, 400, s) == ints(*(4 * i for i in range(100)))
    CUDA.cuMemFree_v2(other)


def test_pointers_that_lie_in_memory(memory: int) -> None:
    table = CUDA.alloc(16)
    CUDA.write(memory, ints(0, 30, 12))
    CUDA.write(table, b"".join((memory + at).to_bytes(8, "little") for at in (4, 8)))
    with kernel("total") as total:
        total(memory, table, 2)
        assert CUDA.read(memory, 4) == ints(42)
    CUDA.cuMemFree_v2(table)


def test_a_kernel_goes_too_far() -> None:
    at = CUDA.alloc(40)
    with kernel("beyond") as beyond:
        beyond(at, 10)
        CUDA.cuStreamSynchronize(None)
    wrong(out_of_range=1)
    CUDA.cuMemFree_v2(at)


def test_no_such_kernel() -> None:
    fails("INVALID_IMAGE", "cuModuleLoadData", ctypes.byref(ctypes.c_void_p()), b"\x7fELF")
    module = CUDA.out(ctypes.c_void_p, "cuModuleLoadData", b"HKFAKE\nsmall")
    fails("NOT_FOUND", "cuModuleGetFunction", ctypes.byref(ctypes.c_void_p()), module, b"multiply")
    CUDA.cuModuleUnload(module)


def revive() -> None:
    """No process recovers from these; a test must."""
    CUDA.set(dead=0)


def test_a_call_that_fails(memory: int) -> None:
    CUDA.refuse("cuMemsetD8Async", 2, 2)
    assert [CUDA.status("cuMemsetD8Async", memory, 0, 8, None) for _ in range(3)] == [0, 2, 0]
    CUDA.refuse("cuMemsetD8Async", -2, 2)
    assert [CUDA.status("cuMemsetD8Async", memory, 0, 8, None) for _ in range(3)] == [0, 2, 2]
    CUDA.refuse("cuEventQuery", 1, 999)
    CUDA.set(refuse_sticky=1)
    assert CUDA.status("cuEventQuery", None) == CUDA.status("cuStreamSynchronize", None) == CUDA.get("dead") == 999
    revive()


def test_an_operation_that_faults(memory: int) -> None:
    """... is noticed later, and by everybody; what waits is let go."""
    CUDA.set(fault_at=2, fault_status=700)
    with contextlib.suppress(CudaError), stream() as a, stream() as b:
        CUDA.cuStreamWaitValue32_v2(b, memory, 1 << 30, NUMBERS["CU_STREAM_WAIT_VALUE_EQ"])
        CUDA.cuMemsetD8Async(memory, 0, 8, a)
        fails("ILLEGAL_ADDRESS", "cuStreamSynchronize", b)
        fails("ILLEGAL_ADDRESS", "cuStreamSynchronize", a)
        fails("ILLEGAL_ADDRESS", "cuMemFree_v2", memory)
        revive()


@pytest.mark.parametrize("why", ["freed", "unreachable", "failed"])
def test_a_kernel_that_faults(why: str, memory: int) -> None:
    other = CUDA.alloc(64)
    status = "ILLEGAL_ADDRESS"
    with kernel("add") as add:
        if why == "freed":
            CUDA.cuMemFree_v2(other)
            add(memory, other, 4)
        elif why == "failed":
            add(memory, other, 4, grid=7)
            status = "LAUNCH_FAILED"
        else:
            CUDA.begin(1)
            away = CUDA.alloc(64)
            CUDA.cuCtxPopCurrent_v2(None)
            add(memory, away, 4)
        fails(status, "cuStreamSynchronize", None)
        fails(status, "cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), 8)
        revive()
    if why == "unreachable":
        CUDA.cuMemFree_v2(away)
        CUDA.cuDevicePrimaryCtxRelease_v2(1)
    if why == "freed":
        wrong(use_after_free=1)
    else:
        CUDA.cuMemFree_v2(other)
    if why == "unreachable":
        wrong(unreachable=1)


def test_names_of_errors() -> None:
    text = ctypes.c_char_p()
    for name in (each for each in NUMBERS if each.startswith("CUDA_")):
        CUDA.cuGetErrorName(NUMBERS[name], ctypes.byref(text))
        assert text.value == name.encode()
    fails("INVALID_VALUE", "cuGetErrorString", 12345, ctypes.byref(text))
