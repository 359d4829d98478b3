"""The stand-in for the CUDA driver keeps its word: devices and memory."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from typing import Any

import pytest
from fake_cuda_driver import CONTEXT, CUDA, fails, process, wrong

from support.gpu import roles
from support.gpu.driver import NUMBERS, Handle
from support.gpu.roles import SIZE, handle


def test_devices() -> None:
    CUDA.set(devices=3, first_device=2)
    assert CUDA.out(ctypes.c_int, "cuDeviceGetCount") == 3
    names, uuids = [], set()
    for device in range(3):
        name, uuid = ctypes.create_string_buffer(32), ctypes.create_string_buffer(16)
        CUDA.cuDeviceGetName(name, 32, device)
        CUDA.cuDeviceGetUuid_v2(uuid, device)
        names.append(name.value.decode())
        uuids.add(uuid.raw)
    assert names == ["Stand-in 2", "Stand-in 3", "Stand-in 4"] and len(uuids) == 3
    fails("INVALID_DEVICE", "cuDeviceGet", ctypes.byref(ctypes.c_int()), 3)
    major = CUDA.out(ctypes.c_int, "cuDeviceGetAttribute", NUMBERS["CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR"], 0)
    assert major == 9 and CUDA.out(ctypes.c_int, "cuDriverGetVersion") == 13000
    assert CUDA.out(ctypes.c_int, "cuDeviceCanAccessPeer", 0, 1) == 1
    CUDA.set(peers=0)
    assert CUDA.out(ctypes.c_int, "cuDeviceCanAccessPeer", 0, 1) == 0


def test_a_context_is_of_a_thread(memory: int) -> None:
    seen: list[Any] = []

    def other() -> None:
        seen.append(CUDA.out(ctypes.c_void_p, "cuCtxGetCurrent"))
        fails("INVALID_CONTEXT", "cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), 8)
        fails("INVALID_CONTEXT", "cuMemcpyAsync", memory, memory, 8, None)
        fails("INVALID_CONTEXT", "cuEventCreate", ctypes.byref(ctypes.c_void_p()), 0)
        seen.append(CUDA.attribute("DEVICE_ORDINAL", memory, ctypes.c_int))
        CUDA.cuCtxPushCurrent_v2(CONTEXT)
        seen.append(CUDA.read(memory, 1) != b"")
        seen.append(CUDA.out(ctypes.c_void_p, "cuCtxPopCurrent_v2"))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [None, 0, True, CONTEXT]


def test_a_context_that_is_let_go() -> None:
    other = CUDA.begin(1)
    assert CUDA.out(ctypes.c_void_p, "cuDevicePrimaryCtxRetain", 1) == other and CUDA.get("contexts") == 2
    CUDA.cuDevicePrimaryCtxRelease_v2(1)
    at = CUDA.alloc(1)
    CUDA.cuDevicePrimaryCtxRelease_v2(1)
    fails("CONTEXT_IS_DESTROYED", "cuMemFree_v2", at)
    fails("INVALID_CONTEXT", "cuDevicePrimaryCtxRelease_v2", 1)
    CUDA.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 1)
    CUDA.cuMemFree_v2(at)
    CUDA.cuDevicePrimaryCtxRelease_v2(1)
    assert CUDA.out(ctypes.c_void_p, "cuCtxPopCurrent_v2") == other
    wrong(bad_handle=1)


def test_nothing_before_init_or_after_fork() -> None:
    child = os.fork()
    if child == 0:
        os._exit(CUDA.status("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), 8))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == NUMBERS["CUDA_ERROR_NOT_INITIALIZED"]


def test_what_a_pointer_is(memory: int) -> None:
    inner = memory + 100
    assert CUDA.attribute("MEMORY_TYPE", inner, ctypes.c_uint) == NUMBERS["CU_MEMORYTYPE_DEVICE"]
    assert CUDA.attribute("RANGE_START_ADDR", inner) == memory and CUDA.attribute("RANGE_SIZE", inner) == SIZE
    assert CUDA.attribute("IS_LEGACY_CUDA_IPC_CAPABLE", inner) == 1 and CUDA.attribute("IS_MANAGED", inner) == 0
    assert CUDA.attribute("CONTEXT", inner, ctypes.c_void_p) == CONTEXT
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    CUDA.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), inner)
    assert (base.value, size.value) == (memory, SIZE)
    host = ctypes.create_string_buffer(8)
    for at in (ctypes.addressof(host), memory + SIZE):
        fails("INVALID_VALUE", "cuPointerGetAttribute", ctypes.byref(base), 2, at)
    pinned = CUDA.out(ctypes.c_void_p, "cuMemHostAlloc", SIZE, 1)
    assert CUDA.attribute("MEMORY_TYPE", pinned, ctypes.c_uint) == NUMBERS["CU_MEMORYTYPE_HOST"]
    assert CUDA.attribute("IS_LEGACY_CUDA_IPC_CAPABLE", pinned) == 0
    ctypes.memset(pinned, 3, SIZE)
    CUDA.cuMemcpyAsync(memory, pinned, SIZE, None)
    assert CUDA.read(memory, 4) == b"\3\3\3\3"
    CUDA.cuMemFreeHost(pinned)


def test_memory_of_a_pool_is_not_exported() -> None:
    CUDA.set(pool=1)
    at = CUDA.alloc(SIZE)
    assert CUDA.attribute("IS_LEGACY_CUDA_IPC_CAPABLE", at) == 0
    fails("INVALID_VALUE", "cuIpcGetMemHandle", ctypes.byref(Handle()), at)
    CUDA.cuMemFree_v2(at)


def test_a_slice_of_an_allocation() -> None:
    at = CUDA.library.fake_suballoc(SIZE)
    start = CUDA.attribute("RANGE_START_ADDR", at)
    assert start < at and CUDA.attribute("RANGE_SIZE", at) > SIZE and CUDA.attribute("IS_LEGACY_CUDA_IPC_CAPABLE", at)
    assert handle(CUDA, "cuIpcGetMemHandle", at) == handle(CUDA, "cuIpcGetMemHandle", start)
    CUDA.library.fake_subfree(at)


def test_copies_in_every_direction(memory: int) -> None:
    other = CUDA.alloc(SIZE)
    source, into = ctypes.create_string_buffer(bytes(range(256)), 256), ctypes.create_string_buffer(256)
    CUDA.write(memory + 1000, source.raw)
    CUDA.cuMemcpyAsync(other + 7, memory + 1000, 256, None)
    assert CUDA.read(other + 7, 256) == source.raw
    CUDA.cuMemcpyAsync(ctypes.addressof(into), ctypes.addressof(source), 256, None)
    CUDA.cuStreamSynchronize(None)
    assert into.raw == source.raw
    CUDA.cuMemcpyAsync(0, 0, 0, None)
    CUDA.cuMemFree_v2(other)


def test_beyond_an_allocation(memory: int) -> None:
    for name, arguments in (
        ("cuMemcpyAsync", (memory + 1, memory, SIZE, None)),
        ("cuMemcpyAsync", (memory, memory + SIZE, 1, None)),
        ("cuMemsetD8Async", (memory + 8, 0, SIZE, None)),
        ("cuStreamWriteValue32_v2", (None, memory + SIZE, 1, 0)),
    ):
        fails("INVALID_VALUE", name, *arguments)
    wrong(out_of_range=4)


def test_freed_memory() -> None:
    at = CUDA.alloc(SIZE)
    CUDA.cuMemFree_v2(at)
    fails("INVALID_VALUE", "cuMemFree_v2", at)
    fails("INVALID_VALUE", "cuMemsetD8Async", at, 0, 8, None)
    fails("INVALID_VALUE", "cuPointerGetAttribute", ctypes.byref(ctypes.c_uint64()), 2, at)
    wrong(double_free=1, use_after_free=1)
    fails("INVALID_VALUE", "cuMemFree_v2", 4096)
    wrong(bad_handle=1)
    CUDA.set(reuse=1)
    again = CUDA.alloc(SIZE)
    assert again == at, "whoever keeps addresses in a cache must notice"
    CUDA.cuMemFree_v2(again)


def test_no_room() -> None:
    CUDA.set(room=1 << 20)
    fails("OUT_OF_MEMORY", "cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), 1 << 21)


@pytest.mark.parametrize("how", ["read", "write"])
def test_the_host_may_not_touch_it(how: str) -> None:
    with process(roles.toucher, how) as (pipe, child):
        assert pipe.recv() == "now"
        with pytest.raises(EOFError):
            pipe.recv()
        child.join()
        assert child.exitcode == -signal.SIGSEGV
