"""The stand-in for the CUDA driver keeps its word: streams, events, words and capture."""

from __future__ import annotations

import ctypes
import threading
import time

import pytest
from fake_cuda_driver import BUSY, CUDA, HostFunction, fails, late, stream, wrong

from support.gpu.driver import NUMBERS
from support.gpu.roles import GEQ


def test_a_stream_is_not_waited_for(memory: int) -> None:
    """... and the host's memory is read when it gets there."""
    source = ctypes.create_string_buffer(b"a" * 8, 8)
    held = threading.Event()
    hold = HostFunction(lambda _: held.wait(20) and None)
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
    hold = HostFunction(lambda _: held.wait(20 if flags else 0.1) and None)
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
        held.wait(20)
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
    """A transport gives up so: another stream writes what the wait waits for."""
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
