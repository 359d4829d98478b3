"""The handover from one process's stream to another's, on one GPU: what it costs, and what happens if one process dies.

Contexts of different processes take turns on a GPU, so a kernel that waits for another may wait for a time slice.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from hocket.conformance.gpu_check.driver import BUSY, MEMOPS, Gpu
from hocket.conformance.gpu_check.processes import DIED, SPAWN, die_in, together
from hocket.conformance.gpu_check.rows import Finding, Options, at_most, say
from hocket.errors import Error
from hocket.kernels.gpu import catalogue as kernels
from hocket.kernels.gpu import launch
from hocket.system.cuda.shared import Mapped, Shared

TURNS = 200
SPINS = 20
"""Meetings of two kernels: each may take a time slice."""
LIMIT_NS = 2_000_000_000
PATIENCE = 5.0
PAYLOAD = 64 << 20
FLAGS = 64 << 10
"""Bytes in the shared memory that are set aside for words; what follows is payload."""


class Side:
    """One of the two processes: memory and an event of its own, and the other's, opened here."""

    def __init__(self, rank: int, pipe: Connection, words: Any, largest: int) -> None:
        self.rank, self.pipe, self.words = rank, pipe, words
        self.gpu = Gpu()
        self.device = self.gpu.device
        self.stream, self.side = self.device.stream(), self.device.stream()
        self.payload = min(largest, PAYLOAD)
        self.own = Shared(self.device, FLAGS + self.payload)
        zeros = np.zeros(FLAGS, np.uint8)
        self.device.copy(self.own.address, zeros.ctypes.data, FLAGS, 0)
        self.device.synchronize(0)
        self.event = self.gpu.event()
        memory, event = self.exchange((self.own.handle, self.gpu.event_handle(self.event)))
        start = time.perf_counter()
        self.peer = Mapped(self.device, memory).address
        middle = time.perf_counter()
        self.peer_event = self.gpu.open_event(event)
        self.open_us = 1e6 * (middle - start), 1e6 * (time.perf_counter() - middle)
        self.meet()

    def exchange(self, mine: Any = None) -> Any:
        self.pipe.send(mine)
        return self.hear()

    meet = exchange

    def hear(self) -> Any:
        if not self.pipe.poll(20):
            raise TimeoutError("the other process is silent")
        return self.pipe.recv()

    def tell(self, row: Finding) -> None:
        if self.rank == 0:
            say(row)

    def await_turn(self, turn: int) -> None:
        """Wait until the other process has written `turn` into its word of the host's memory."""
        deadline = time.monotonic() + PATIENCE
        while self.words[1 - self.rank] < turn:
            if time.monotonic() > deadline:
                raise TimeoutError("the other process is silent")

    def drain(self) -> None:
        """Wait, bounded, until the stream is done; else end at once, as an orderly end would wait for the stream."""
        why = self.gpu.drained(self.stream, PATIENCE)
        if why:
            self.tell(Finding("a stream's work", why, ok=False))
            os._exit(3)


def _start(what: Callable[[Side], None], rank: int, pipe: Connection, words: Any, largest: int) -> None:
    what(Side(rank, pipe, words, largest))


def _timed(side: Side, name: str, turn: Callable[[int], None], turns: int, target: float | None = None) -> None:
    """Round trips: the first few are not counted."""
    for i in range(1, 6):
        turn(i)
    side.drain()
    side.meet()
    start = time.perf_counter()
    for i in range(6, turns + 6):
        turn(i)
    side.drain()
    took = 1e6 * (time.perf_counter() - start) / turns
    side.tell(Finding(name, took, "us") if target is None else at_most(name, took, "us", target))
    side.meet()


def opening(side: Side) -> None:
    side.tell(Finding("opening a handle of memory", side.open_us[0], "us"))
    side.tell(Finding("opening a handle of an event", side.open_us[1], "us"))
    try:
        Mapped(side.device, side.own.handle)
        side.tell(Finding("opening one's own handle of memory", "is allowed"))
    except Error as why:
        side.tell(Finding("opening one's own handle of memory", "is refused", note=str(why)))
    side.meet()
    if side.rank == 0:
        into = side.gpu.alloc(side.payload)
        calls = [partial(side.device.copy, into, side.peer + FLAGS, side.payload, 0)] * 5
        say(Finding("copy from the other's memory", 2 * side.payload / side.gpu.seconds(calls) / 1e9, "GB/s"))
    side.meet()


def by_events(side: Side) -> None:
    """Record, say so in the host's memory, and the other makes its stream wait.  (hocket's host waits: mark.h.)"""
    gpu = side.gpu

    def turn(i: int) -> None:
        if side.rank == 0:
            gpu.record(side.event, side.stream)
            side.words[0] = i
        side.await_turn(i)
        gpu.await_event(side.stream, side.peer_event)
        if side.rank == 1:
            gpu.record(side.event, side.stream)
            side.words[1] = i

    def settled(i: int) -> None:
        turn(TURNS + 100 + i)
        if side.rank == 0:
            gpu.drained(side.stream, PATIENCE)

    _timed(side, "round trip by events and words of the host, issued ahead", turn, TURNS)
    _timed(side, "the same, each waited for by the host", settled, TURNS)


def by_words(side: Side) -> None:
    """By words of device memory that streams write and wait for; each waits for a word of its own process's memory."""
    gpu = side.gpu

    def turn(i: int) -> None:
        if side.rank == 0:
            gpu.write_word(side.stream, side.peer, i)
        gpu.await_word(side.stream, side.own.address, i)
        if side.rank == 1:
            gpu.write_word(side.stream, side.peer, i)

    _timed(side, "round trip by stream memory operations", turn, TURNS)


def by_kernels(side: Side) -> None:
    """Two kernels that spin for each other, each bounded."""
    gpu = side.gpu
    flags = [side.own.address, side.peer] if side.rank == 0 else [side.peer, side.own.address]
    words = gpu.alloc(64, np.zeros(64, np.uint8))
    gpu.function(kernels.BARRIER)
    side.meet()  # both have compiled it

    def turn(i: int) -> None:
        peers = launch.Peers(launch.pointers(flags).at, words, words + 4, LIMIT_NS, i, side.rank, 2)
        gpu.launch(kernels.BARRIER, 1, peers, stream=side.stream)

    _timed(side, "two kernels that spin for each other meet", turn, SPINS)
    status = np.zeros(1, np.uint32)
    gpu.device.copy(status.ctypes.data, words, 4, side.stream)
    side.drain()
    side.tell(Finding("... and none gave up", launch.explain_status(int(status[0])) or "yes"))


def killed_event(side: Side) -> None:
    """The awaited record stands behind work that never ends, and then its process dies."""
    gpu = side.gpu
    if side.rank == 1:
        gpu.await_word(side.stream, side.own.address, 1)
        gpu.record(side.event, side.stream)
        side.meet()
        side.hear()
        die_in(0.001)
        time.sleep(30)
    side.meet()
    gpu.await_event(side.stream, side.peer_event)
    _killed(side, "a stream that waits for an event of a process that is killed")


def killed_word(side: Side) -> None:
    if side.rank == 1:
        side.meet()
        side.hear()
        die_in(0.001)
        time.sleep(30)
    gpu = side.gpu
    gpu.await_word(side.stream, side.own.address, 1)
    side.meet()
    _killed(side, "a stream that waits for a word of a process that is killed")
    gpu.write_word(side.side, side.own.address, 1)
    start = time.monotonic()
    why = gpu.drained(side.stream, PATIENCE)
    took = 1e3 * (time.monotonic() - start)
    say(Finding("... after its own process has written the word", why or f"goes on, {took:.1f} ms", ok=not why))
    os._exit(0)


def _killed(side: Side, name: str) -> None:
    time.sleep(0.2)
    waits = side.gpu.status("cuStreamQuery", side.stream) == BUSY
    start = time.monotonic()
    side.pipe.send("now")
    why = side.gpu.drained(side.stream, PATIENCE)
    took = 1e3 * (time.monotonic() - start)
    found = f"goes on after {took:.0f} ms" if not why else "hangs" if why.startswith("still") else "fails"
    say(Finding(name, found, note=why or ("" if waits else "it did not wait before either")))
    if name.startswith("a stream that waits for an event"):
        os._exit(0)  # an orderly end could wait for that stream


EXPERIMENTS: tuple[tuple[str, Callable[[Side], None], bool, dict[int, int]], ...] = (
    ("opening handles", opening, False, {}),
    ("events", by_events, False, {}),
    ("stream memory operations", by_words, True, {}),
    ("spinning kernels", by_kernels, False, {}),
    ("a killed process's event", killed_event, True, {1: DIED}),
    ("a killed process's word", killed_word, True, {1: DIED}),
)
"""Name, what both processes do, whether it needs stream memory operations, ends other than 0."""


def memops() -> None:
    """In a process of its own: the part itself needs no context."""
    gpu = Gpu()
    word = gpu.alloc(64, np.zeros(64, np.uint8))
    stream = gpu.device.stream()
    gpu.write_word(stream, word, 7)
    gpu.await_word(stream, word, 7)
    why = gpu.drained(stream, PATIENCE)
    say(Finding("stream memory operations", why or "work", ok=not why, note=f"attribute {gpu.attribute(MEMOPS)}"))
    os._exit(3 if why else 0)


def handoff(options: Options) -> Iterator[Finding]:
    refused = list(together("stream memory operations", [memops], 20))
    yield from refused
    for name, experiment, needs_words, ends in EXPERIMENTS:
        if needs_words and refused:
            yield Finding(name, "not tried", note="it needs stream memory operations")
            continue
        pipes, words = SPAWN.Pipe(), SPAWN.RawArray("Q", 2)
        calls = [partial(_start, experiment, rank, pipes[rank], words, options.largest) for rank in range(2)]
        yield from together(name, calls, 25, ends)
