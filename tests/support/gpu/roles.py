"""The other process in the tests over the stand-in for CUDA.  Each is given a pipe to its test."""

from __future__ import annotations

import ctypes
import os
import time
from multiprocessing.connection import Connection
from typing import Any

from support.gpu.driver import NUMBERS, CudaError, Driver, Handle

LAZY = NUMBERS["CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS"]
GEQ = NUMBERS["CU_STREAM_WAIT_VALUE_GEQ"]
SIZE = 8192


def handle(driver: Driver, call: str, what: int) -> bytes:
    made = Handle()
    getattr(driver, call)(ctypes.byref(made), what)
    return bytes(made)


def opened(driver: Driver, there: bytes) -> int:
    return int(driver.out(ctypes.c_uint64, "cuIpcOpenMemHandle_v2", Handle.from_buffer_copy(there), LAZY))


def opened_event(driver: Driver, there: bytes) -> int:
    return int(driver.out(ctypes.c_void_p, "cuIpcOpenEventHandle", Handle.from_buffer_copy(there)))


def owner(pipe: Connection, first_device: int = 0) -> None:
    """Allocates SIZE bytes; then does as it is told: ("fill", byte), ("free",), ("get", number), ("end",)."""
    driver = Driver()
    driver.set(first_device=first_device)
    driver.begin()
    at = driver.alloc(SIZE)
    driver.write(at, b"\1" * SIZE)
    pipe.send((os.getpid(), handle(driver, "cuIpcGetMemHandle", at)))
    while (order := pipe.recv())[0] != "end":
        if order[0] == "fill":
            driver.write(at, bytes([order[1]]) * SIZE)
            pipe.send("filled")
        elif order[0] == "free":
            pipe.send(driver.status("cuMemFree_v2", at))
        elif order[0] == "get":
            pipe.send(driver.get(order[1]))


def reader(pipe: Connection) -> None:
    """Maps what it is given, and says what it reads; ("close",) closes it."""
    driver = Driver()
    driver.begin()
    while (order := pipe.recv())[0] != "end":
        try:
            if order[0] == "open":
                at = opened(driver, order[1])
                pipe.send(at)
            elif order[0] == "read":
                pipe.send(driver.read(at, SIZE)[:1])
            elif order[0] == "close":
                driver.cuIpcCloseMemHandle(at)
                pipe.send(driver.get("ipc_maps"))
        except CudaError as error:
            pipe.send(error)


def giver(pipe: Connection, rounds: int, *, by_words: bool) -> None:
    """Fills its memory with the number of the round, late, and marks when it has: by an event or a word."""
    driver = Driver()
    driver.begin()
    at, flag, stream, event = driver.alloc(SIZE), driver.alloc(4), driver.stream(1), driver.event(6)
    driver.write(flag, bytes(4))
    driver.write(at, bytes(SIZE))
    handles = [handle(driver, "cuIpcGetMemHandle", each) for each in (at, flag)]
    pipe.send((*handles, handle(driver, "cuIpcGetEventHandle", event)))
    pipe.recv()
    for number in range(1, rounds + 1):
        driver.cuMemsetD8Async(at, number, SIZE, stream)
        if by_words:
            driver.cuStreamWriteValue32_v2(stream, flag, number, 0)
        else:
            driver.cuEventRecord(event, stream)
        pipe.send(number)
        pipe.recv()  # it has been read
    driver.cuStreamSynchronize(stream)


def taker(pipe: Connection, giver: Connection, rounds: int, *, by_words: bool, waits: bool) -> None:
    """Copies what the giver filled, as soon as it hears that the mark is queued; says what it found."""
    driver = Driver()
    driver.begin()
    there, flag, mark = giver.recv()
    data, word, event = opened(driver, there), opened(driver, flag), opened_event(driver, mark)
    own, stream = driver.alloc(SIZE), driver.stream(1)
    giver.send("ready")
    found: list[Any] = []
    for _ in range(rounds):
        number = giver.recv()
        if waits and by_words:
            driver.cuStreamWaitValue32_v2(stream, word, number, GEQ)
        elif waits:
            driver.cuStreamWaitEvent(stream, event, 0)
        driver.cuMemcpyAsync(own, data, SIZE, stream)
        found.append(driver.read(own, SIZE, stream) == bytes([number]) * SIZE)
        giver.send("read")
    pipe.send((found, driver.get("misuses")))


def toucher(pipe: Connection, how: str) -> None:
    """Reads or writes device memory as if it were the host's."""
    driver = Driver()
    driver.begin()
    at = driver.alloc(SIZE)
    pipe.send("now")
    if how == "read":
        ctypes.string_at(at, 1)
    else:
        ctypes.memset(at, 0, 1)
    pipe.send("it was let")


def waiter(pipe: Connection, mark: bytes) -> None:
    """Waits for an event until it is killed."""
    driver = Driver()
    driver.begin()
    driver.cuStreamWaitEvent(driver.stream(1), opened_event(driver, mark), 0)
    pipe.send("waits")
    time.sleep(60)
