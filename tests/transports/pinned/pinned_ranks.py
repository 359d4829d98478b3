"""Ranks whose GPU channels go through pinned memory, on each kind of host channel, over the stand-in for the driver.

A pytest plugin of the process that test_pinned.py starts.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from hocket.collectives.engine.engine import Engine
from hocket.collectives.gpu.stream_ops import OnStream, StreamOps
from hocket.collectives.plans.instr import About, Instr
from hocket.collectives.plans.plan import Plan
from hocket.conformance import InProcess, Pair, Side
from hocket.conformance.ends import WORDS, pieces
from hocket.system.cuda import driver
from hocket.transports.adapter import Adapter
from hocket.transports.pinned import channels
from hocket.transports.reference import Pipe
from hocket.transports.shm.channels import RingChannels
from hocket.transports.shm.window import Window
from hocket.transports.tcp.transport import TcpTransport
from support.gpu.arrays import GpuArray
from support.gpu.driver import Driver

CUDA = Driver()
DEVICE = driver.device(0)
CONTEXT = CUDA.begin()
MADE = ("pinned", "bytes", "events", "streams")
MIB = 1 << 20
SIZES = [0, 1, 4095, MIB - 1, MIB, MIB + 1, 9 * MIB + 3]
DELAY = 1000


def made() -> dict[str, int]:
    gc.collect()
    return {name: CUDA.get(name) for name in MADE}


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = made()
    CUDA.set(misuses=0, delay=0)
    yield
    CUDA.refuse("", 0, 0)
    CUDA.set(dead=0, delay=0)
    assert made() == before and CUDA.get("misuses") == 0


def memory() -> tuple[Side, Side]:
    """Rings whose reader may read what the producer names."""
    windows = [Window() for _ in range(2)]
    rings = [RingChannels(rank, windows, [os.getpid()] * 2) for rank in range(2)]
    a, b = (Side(*rings[r].open(1 - r, rings[1 - r].offer()), (rings, windows)) for r in range(2))
    return a, b


def python() -> tuple[Side, Side]:
    """Without `recv`, without anything to wait on."""
    there, back = Pipe(), Pipe()
    adapters = [Adapter(pipe) for pipe in (there, back, back, there)]
    a, b = (Side(adapters[i].capsule, adapters[i + 1].capsule, adapters) for i in (0, 2))
    return a, b


HOSTS = ("shm", "tcp", "python")


@pytest.fixture(params=HOSTS)
def host(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with InProcess(TcpTransport) as ranks:
        yield {"shm": memory, "tcp": ranks.pair, "python": python}[request.param]


class Sides:
    """Sides that were opened by a test, and are closed after it."""

    def __init__(self) -> None:
        self.all: list[channels.Pinned] = []

    def side(self, below: Side) -> Side:
        self.all.append(channels.Pinned(DEVICE))
        send, recv = self.all[-1].open(below.send, below.recv)
        return Side(send, recv, (self.all[-1], below.owner), below.close)


@pytest.fixture
def sides() -> Iterator[Sides]:
    made = Sides()
    yield made
    assert all(each.close() for each in made.all)


# The stand-in copies host memory as readily as its own, so the laws' arrays will do.
ENDS = {"both": (True, True), "sends": (True, False), "receives": (False, True)}


class Rank:
    """One end; its arrays are in GPU memory if its channels are."""

    def __init__(self, rank: int, side: Side, on_gpu: bool) -> None:
        self.rank, self.peer, self.on_gpu = rank, 1 - rank, on_gpu
        self.engine = Engine(rank, 2, 200)
        self.engine.connect(self.peer, side.send, side.recv, side)
        self.close_side = side.close or (lambda: None)
        self.stream = DEVICE.stream() if on_gpu else 0
        self.ops = StreamOps(DEVICE) if on_gpu else None

    def array(self, host: Any) -> Any:
        """These bytes, which come late."""
        if not self.on_gpu:
            return host
        array = GpuArray(max(1, len(host)), np.uint8, stream=self.stream)
        array.host = host  # type: ignore[attr-defined]
        DEVICE.copy(array.address, host.ctypes.data, len(host), self.stream)
        return array

    def run(self, *instrs: Any, source: Any = None, target: Any = None, tag: int = 1, timeout: float = 20) -> str:
        plan = Plan([list(instrs)], About(), traffic="moved")
        at = [0 if a is None else a.address if self.on_gpu else a.ctypes.data for a in (source, target)]
        placed = OnStream(self.ops, self.stream) if self.ops else None
        return WORDS[self.engine.execute(plan, *at, timeout=timeout, tag=tag, placed=placed)]

    def send(self, array: Any, length: int, **how: Any) -> str:
        return self.run(Instr("send", [self.peer], src=pieces(0, length)), source=array, **how)

    def recv(self, array: Any, length: int, **how: Any) -> str:
        return self.run(Instr("recv", [self.peer], dst=pieces(1, length)), target=array, **how)

    def swap(self, source: Any, target: Any, length: int) -> str:
        sent = Instr("send", [self.peer], src=pieces(0, length))
        return self.run(sent, Instr("recv", [self.peer], dst=pieces(1, length)), source=source, target=target)

    def bytes(self, array: Any, length: int) -> Any:
        return array.get()[:length] if self.on_gpu else array

    def close(self) -> None:
        if self.ops:
            DEVICE.synchronize(self.stream)
            DEVICE.end_stream(self.stream)
            self.ops.close()


@pytest.fixture
def ranks(host: Pair, sides: Sides) -> Iterator[Callable[[str], list[Rank]]]:
    opened: list[Rank] = []

    def open_them(which: str) -> list[Rank]:
        for rank, (side, on) in enumerate(zip(host(), ENDS[which], strict=True)):
            opened.append(Rank(rank, sides.side(side) if on else side, on))
        return opened

    yield open_them
    for rank in opened:
        rank.close()
    opened.clear()


def together(ranks: list[Rank], *what: Callable[[Rank], Any]) -> list[Any]:
    """The results of each, in threads of their own."""
    found: list[Any] = [None] * len(ranks)

    def call(i: int) -> None:
        found[i] = what[i % len(what)](ranks[i])

    threads = [threading.Thread(target=call, args=(i,), daemon=True) for i in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


Open = Callable[[str], list[Rank]]
