"""The stand-in for the CUDA driver keeps its word between processes: memory and events of others."""

from __future__ import annotations

import ctypes

import pytest
from fake_cuda_driver import CONTEXT, CUDA, SPAWN, fails, process, stream, wrong

from support.gpu import roles
from support.gpu.driver import Handle
from support.gpu.roles import GEQ, LAZY, SIZE, handle


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
    """Mapped memory stays; nothing new is to be had; its files are the test's to remove."""
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
