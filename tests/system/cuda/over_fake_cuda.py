"""The stand-in for the CUDA driver keeps its word.  test_fake_cuda.py runs this where that is libcuda.so.1."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import cuda_roles as roles
import pytest
from cuda_driver import NUMBERS, CudaError, Driver, Handle
from cuda_roles import GEQ, LAZY, SIZE, handle

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


# -------------------------------------------------------------------------------------------- devices and contexts

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


# ----------------------------------------------------------------------------------------------------------- memory

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


# ---------------------------------------------------------------------------------------------- streams and events

def late(n: int = 20000) -> None:
    CUDA.set(delay=n)


def test_a_stream_is_not_waited_for(memory: int) -> None:
    """... and the host's memory is read when it gets there."""
    source = ctypes.create_string_buffer(b"a" * 8, 8)
    held = threading.Event()
    hold = HostFunction(lambda _: held.wait(5) and None)
    with stream() as s:
        CUDA.cuLaunchHostFunc(s, hold, None)
        CUDA.cuMemcpyAsync(memory, ctypes.addressof(source), 8, s)
        assert CUDA.status("cuStreamQuery", s) == BUSY
        ctypes.memset(source, ord("b"), 8)
        held.set()
        CUDA.cuStreamSynchronize(s)
        assert CUDA.status("cuStreamQuery", s) == 0 and CUDA.read(memory, 8) == b"b" * 8


def test_no_call_of_cuda_from_a_call_of_the_host() -> None:
    seen: list[int] = []
    call = HostFunction(lambda _: seen.append(CUDA.status("cuStreamQuery", None)))
    CUDA.cuLaunchHostFunc(None, call, None)
    CUDA.cuStreamSynchronize(None)
    assert seen == [NUMBERS["CUDA_ERROR_NOT_PERMITTED"]]


def order(flags: int) -> bytes:
    """Fill by one stream, late, and read by the legacy default one."""
    at = CUDA.alloc(8)
    CUDA.write(at, bytes(8))
    held = threading.Event()
    hold = HostFunction(lambda _: held.wait(5 if flags else 0.1) and None)
    with stream(flags) as s:
        CUDA.cuLaunchHostFunc(s, hold, None)
        CUDA.cuMemsetD8Async(at, 7, 8, s)
        seen = CUDA.read(at, 8, 1)
        held.set()
    CUDA.cuMemFree_v2(at)
    return seen


def test_the_legacy_stream_waits_for_those_that_block() -> None:
    assert order(flags=0) == b"\7" * 8 and order(flags=1) == bytes(8)


def test_those_that_block_wait_for_the_legacy_stream(memory: int) -> None:
    held = threading.Event()

    def linger(_: object) -> None:
        held.wait(5)
        time.sleep(0.02)

    hold = HostFunction(linger)
    CUDA.write(memory, bytes(8))
    CUDA.cuLaunchHostFunc(None, hold, None)
    CUDA.cuMemsetD8Async(memory, 1, 8, 0)
    with stream(1) as free, stream(0) as blocks:
        assert CUDA.read(memory, 8, free) == bytes(8)
        held.set()
        assert CUDA.read(memory, 8, blocks) == b"\1" * 8
    CUDA.cuLaunchHostFunc(None, hold, None)
    CUDA.cuMemsetD8Async(memory, 2, 8, 0)
    assert CUDA.read(memory, 8, 2) == b"\2" * 8, "the thread's own default stream blocks too"


def test_a_wait_takes_the_record_there_is(memory: int) -> None:
    word, event = CUDA.alloc(4), CUDA.event()
    CUDA.write(word, bytes(4))
    with stream() as a, stream() as b, stream() as c:
        assert CUDA.status("cuEventQuery", event) == 0, "never recorded"
        CUDA.cuStreamWaitEvent(b, event, 0)
        CUDA.cuEventRecord(event, a)
        CUDA.cuStreamWaitEvent(b, event, 0)  # the first record
        CUDA.cuStreamWaitValue32_v2(a, word, 1, GEQ)
        CUDA.cuEventRecord(event, a)  # the second waits for the word
        CUDA.cuStreamSynchronize(b)
        assert CUDA.status("cuEventQuery", event) == BUSY
        CUDA.cuStreamWaitEvent(c, event, 0)
        CUDA.cuMemsetD8Async(memory, 9, 4, c)
        assert CUDA.status("cuStreamQuery", c) == BUSY
        CUDA.cuStreamWriteValue32_v2(b, word, 1, 0)
        CUDA.cuEventSynchronize(event)
        CUDA.cuStreamSynchronize(c)
    CUDA.cuEventDestroy_v2(event)
    fails("INVALID_HANDLE", "cuEventQuery", event)
    wrong(bad_handle=1)
    CUDA.cuMemFree_v2(word)


def test_without_a_wait_it_comes_too_early(memory: int) -> None:
    event, stale = CUDA.event(), [0, 0]
    late(3000)
    with stream() as a, stream() as b:
        for waits in (0, 1):
            for number in range(1, 20):
                CUDA.cuMemsetD8Async(memory, 0, 4, a)
                CUDA.cuMemsetD8Async(memory, number, 4, a)
                CUDA.cuEventRecord(event, a)
                if waits:
                    CUDA.cuStreamWaitEvent(b, event, 0)
                stale[waits] += CUDA.read(memory, 4, b) != bytes([number]) * 4
                CUDA.cuStreamSynchronize(a)
    assert stale[0] > 5 and stale[1] == 0, stale
    CUDA.cuEventDestroy_v2(event)


WAITS = [("GEQ", 0, 0), ("GEQ", 2**31 - 1, -(2**31)), ("EQ", 5, 5), ("AND", 4, 6), ("NOR", 1, 2)]


@pytest.mark.parametrize(("how", "value", "word"), WAITS)
def test_words(how: str, value: int, word: int) -> None:
    at, flags = CUDA.alloc(4), NUMBERS[f"CU_STREAM_WAIT_VALUE_{how}"]
    CUDA.write(at, word.to_bytes(4, "little", signed=True))
    with stream() as s:
        CUDA.cuStreamWaitValue32_v2(s, at, value, flags)
    CUDA.cuMemFree_v2(at)


def test_words_that_are_refused(memory: int) -> None:
    host = ctypes.create_string_buffer(8)
    fails("INVALID_VALUE", "cuStreamWaitValue32_v2", None, memory + 2, 0, GEQ)
    fails("INVALID_VALUE", "cuStreamWriteValue32_v2", None, ctypes.addressof(host) & ~7, 0, 0)
    CUDA.set(memops=0)
    fails("NOT_SUPPORTED", "cuStreamWriteValue32_v2", None, memory, 0, 0)


def test_a_wait_is_ended_from_beside() -> None:
    """As a transport gives up: another stream writes what the wait waits for."""
    at = CUDA.alloc(4)
    CUDA.write(at, bytes(4))
    with stream() as a, stream() as b:
        CUDA.cuStreamWaitValue32_v2(a, at, 100, GEQ)
        assert CUDA.status("cuStreamQuery", a) == BUSY
        CUDA.cuStreamWriteValue32_v2(b, at, 0x7FFFFFFF, 0)
        CUDA.cuStreamSynchronize(a)
    CUDA.cuMemFree_v2(at)


def test_capture() -> None:
    def status() -> int:
        value = ctypes.c_int()
        CUDA.cuStreamIsCapturing(None, ctypes.byref(value))
        return value.value

    assert status() == NUMBERS["CU_STREAM_CAPTURE_STATUS_NONE"]
    CUDA.set(capturing=1)
    assert status() == NUMBERS["CU_STREAM_CAPTURE_STATUS_ACTIVE"]
    fails("STREAM_CAPTURE_UNSUPPORTED", "cuStreamSynchronize", None)


# ---------------------------------------------------------------------------------------------------- other processes

def test_memory_of_another_process() -> None:
    with process(roles.owner) as (owner, _), process(roles.reader) as (reader, _):
        _, there = owner.recv()
        at, again = roles.opened(CUDA, there), roles.opened(CUDA, there)
        assert at == again and CUDA.get("ipc_maps") == 1, "one map, opened twice"
        assert CUDA.attribute("RANGE_SIZE", at) == SIZE and not CUDA.attribute("IS_LEGACY_CUDA_IPC_CAPABLE", at)
        CUDA.cuMemsetD8Async(at, 5, SIZE, None)
        CUDA.cuStreamSynchronize(None)
        reader.send(("open", there))
        reader.recv()
        reader.send(("read",))
        assert reader.recv() == b"\5"
        CUDA.cuIpcCloseMemHandle(at)
        owner.send(("fill", 6))
        owner.recv()
        assert CUDA.read(at, 1) == b"\6"
        fails("INVALID_VALUE", "cuMemFree_v2", at)
        wrong(bad_handle=1)
        CUDA.cuIpcCloseMemHandle(at)
        fails("INVALID_VALUE", "cuIpcCloseMemHandle", at)
        wrong(double_free=1)
        reader.send(("close",))
        assert reader.recv() == 0
        owner.send(("free",))
        assert owner.recv() == 0
        owner.send(("get", "misuses"))
        assert owner.recv() == 0
        fails("INVALID_VALUE", "cuIpcOpenMemHandle_v2", ctypes.byref(ctypes.c_uint64()),
              Handle.from_buffer_copy(there), LAZY)  # fmt: skip


@pytest.mark.parametrize(("first", "here"), [(1, 1), (7, 0)], ids=["visible", "not visible"])
def test_memory_of_a_device_with_another_number(first: int, here: int) -> None:
    with process(roles.owner, first) as (owner, _):
        _, there = owner.recv()
        at = roles.opened(CUDA, there)
        assert CUDA.attribute("DEVICE_ORDINAL", at, ctypes.c_int) == here and CUDA.read(at, 1) == b"\1"
        CUDA.cuIpcCloseMemHandle(at)


def test_not_of_this_process(memory: int) -> None:
    event = CUDA.event(6)
    at, mark = (
        Handle.from_buffer_copy(handle(CUDA, call, what))
        for call, what in (("cuIpcGetMemHandle", memory), ("cuIpcGetEventHandle", event))
    )
    fails("INVALID_CONTEXT", "cuIpcOpenMemHandle_v2", ctypes.byref(ctypes.c_uint64()), at, LAZY)
    fails("INVALID_CONTEXT", "cuIpcOpenEventHandle", ctypes.byref(ctypes.c_void_p()), mark)
    fails("INVALID_VALUE", "cuIpcOpenMemHandle_v2", ctypes.byref(ctypes.c_uint64()), Handle(), LAZY)
    CUDA.cuEventDestroy_v2(event)
    plain = CUDA.event(2)
    fails("INVALID_HANDLE", "cuIpcGetEventHandle", ctypes.byref(Handle()), plain)
    fails("INVALID_VALUE", "cuEventCreate", ctypes.byref(ctypes.c_void_p()), 4)
    CUDA.cuEventDestroy_v2(plain)


def test_freed_while_a_peer_has_it() -> None:
    with process(roles.owner) as (owner, _):
        _, there = owner.recv()
        at = roles.opened(CUDA, there)
        owner.send(("free",))
        assert owner.recv() == 0
        owner.send(("get", "freed_while_mapped"))
        assert owner.recv() == 1
        CUDA.cuIpcCloseMemHandle(at)


def test_devices_that_do_not_reach_each_other() -> None:
    with process(roles.owner) as (owner, _):
        _, there = owner.recv()
        CUDA.set(peers=0)
        other = CUDA.begin(1)
        fails("PEER_ACCESS_UNSUPPORTED", "cuIpcOpenMemHandle_v2", ctypes.byref(ctypes.c_uint64()),
              Handle.from_buffer_copy(there), LAZY)  # fmt: skip
        fails("PEER_ACCESS_UNSUPPORTED", "cuCtxEnablePeerAccess", CONTEXT, 0)
        CUDA.set(peers=1)
        CUDA.cuCtxEnablePeerAccess(CONTEXT, 0)
        fails("PEER_ACCESS_ALREADY_ENABLED", "cuCtxEnablePeerAccess", CONTEXT, 0)
        CUDA.cuIpcCloseMemHandle(roles.opened(CUDA, there))
        assert CUDA.out(ctypes.c_void_p, "cuCtxPopCurrent_v2") == other
        CUDA.cuDevicePrimaryCtxRelease_v2(1)


def test_the_owner_is_killed() -> None:
    """What is mapped stays; nothing new is to be had; its files are the test's to remove."""
    with process(roles.owner) as (owner, child):
        _, there = owner.recv()
        at = roles.opened(CUDA, there)
        child.kill()
        child.join()
        assert CUDA.read(at, 2) == b"\1\1"
        CUDA.cuIpcCloseMemHandle(at)
        fails("MAP_FAILED", "cuIpcOpenMemHandle_v2", ctypes.byref(ctypes.c_uint64()),
              Handle.from_buffer_copy(there), LAZY)  # fmt: skip


def test_who_maps_it_is_killed(memory: int) -> None:
    at = CUDA.alloc(SIZE)
    with process(roles.reader) as (reader, child):
        reader.send(("open", handle(CUDA, "cuIpcGetMemHandle", at)))
        assert isinstance(reader.recv(), int)
        child.kill()
        child.join()
    CUDA.cuMemFree_v2(at)  # and that is no misuse


def hand_over(**options: bool) -> list[bool]:
    """Twelve rounds from one process to another, and which of them came across."""
    waits = options.pop("waits")
    here, there = SPAWN.Pipe()
    given = SPAWN.Process(target=roles.giver, args=(there, 12), kwargs=options, daemon=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_CUDA", "delay=10000")
        given.start()
    there.close()
    with process(roles.taker, here, 12, waits=waits, **options) as (pipe, _):
        found, misuses = pipe.recv()
    given.join(20)
    assert given.exitcode == 0 and misuses == 0
    return [bool(each) for each in found]


@pytest.mark.parametrize("by_words", [False, True], ids=["event", "word"])
def test_handed_over(by_words: bool) -> None:
    assert hand_over(by_words=by_words, waits=True) == [True] * 12
    assert sum(hand_over(by_words=by_words, waits=False)) < 8, "without the wait it must be stale at times"


def test_an_event_that_is_destroyed_too_early() -> None:
    word, event = CUDA.alloc(4), CUDA.event(6)
    CUDA.write(word, bytes(4))
    for kill, seen in ((True, 0), (False, 1)):
        with stream() as s, process(roles.waiter, handle(CUDA, "cuIpcGetEventHandle", event)) as (pipe, child):
            CUDA.cuStreamWaitValue32_v2(s, word, 1, GEQ)
            CUDA.cuEventRecord(event, s)
            assert pipe.recv() == "waits"
            if kill:
                child.kill()
                child.join()
            CUDA.cuEventDestroy_v2(event)
            assert CUDA.get("early_destroy") == seen
            with stream() as beside:
                CUDA.cuStreamWriteValue32_v2(beside, word, 1, 0)
            child.kill()
        event = CUDA.event(6)
        CUDA.write(word, bytes(4))
    CUDA.cuEventDestroy_v2(event)
    CUDA.cuMemFree_v2(word)
    wrong(early_destroy=1)


# ----------------------------------------------------------------------------------------------------------- kernels

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


# ----------------------------------------------------------------------------------------------------------- failures

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
