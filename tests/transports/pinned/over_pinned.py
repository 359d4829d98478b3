"""Channels of GPU memory on host channels (pinned/protocol.h): the laws, GPU memory, and what goes wrong.

test_pinned.py runs this over the stand-in for the driver, with pinned_ranks.py as a plugin.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pinned_ranks import CUDA, DELAY, DEVICE, ENDS, HOSTS, MIB, SIZES, Open, Rank, Sides, python, together

from hocket.conformance import LAWS, NotOfferedError, Pair, Side, laws
from hocket.conformance.ends import End, both, data
from hocket.errors import TransportError
from hocket.transports.adapter import Adapter
from hocket.transports.pinned import channels
from hocket.transports.reference import Pipe
from support.gpu.arrays import put
from support.gpu.driver import NUMBERS

laws.STILL = 0.1
PLAIN = ("tcp", "both")
"""In the plain run of the tests; the others with the marker `gpu`."""
ON = [
    pytest.param(host, which, marks=() if (host, which) == PLAIN else pytest.mark.gpu)
    for host in HOSTS
    for which in ENDS
]


@pytest.mark.parametrize(("host", "which"), ON, indirect=["host"])
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_law(
    law: Callable[[Pair], None], which: str, host: Pair, sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = End.run

    def through(*args: Any, **how: Any) -> str:
        said = run(*args, **how)
        DEVICE.synchronize(0)  # what has come is there in stream order
        return said

    monkeypatch.setattr(End, "run", through)

    def pair() -> tuple[Side, Side]:
        a, b = (sides.side(each) if on else each for each, on in zip(host(), ENDS[which], strict=True))
        return a, b

    try:
        law(pair)
    except NotOfferedError:
        assert law is laws.closing_is_noticed  # memory cannot tell


@pytest.mark.parametrize("host", ["tcp"], indirect=True)
def test_a_slot_ends_with_a_whole_element(host: Pair, sides: Sides) -> None:
    """12 divides no slot."""
    n = 2 * MIB // 12 * 12

    def send(end: End) -> str:
        return end.send(data(n), itemsize=12, user=print)

    def read(end: End) -> Any:
        result, got = end.reduce(data(n, 1), [0], 12)
        return result, np.array_equal(got, data(n) ^ data(n, 1))

    sides = tuple(sides.side(each) for each in host())
    assert both(lambda: sides, send, read) == ("done", ("done", True))  # type: ignore[arg-type, return-value]


# ------------------------------------------------------------------------------------------- GPU memory


@pytest.mark.parametrize("which", ENDS)
def test_every_size_both_ways_at_once(which: str, ranks: Open) -> None:
    """Streams are late, so whoever does not wait for them sees other bytes."""
    CUDA.set(delay=DELAY)

    def swap(rank: Rank) -> list[str]:
        found = []
        for n in SIZES:
            x, into = rank.array(data(n, rank.rank)), rank.array(np.full(n, 0xEE, np.uint8))
            said = rank.swap(x, into, n)
            same = np.array_equal(rank.bytes(into, n), data(n, rank.peer))
            found.append(said if same else f"other bytes, of {n}")
        return found

    assert together(ranks(which), swap) == [["done"] * len(SIZES)] * 2


def test_many_messages_in_a_row(ranks: Open) -> None:
    """One after the other into one array, in stream order: nothing is waited for but at the end."""
    CUDA.set(delay=100)
    lengths = [i % 61 for i in range(100)]
    starts = np.cumsum([0, *lengths])
    whole = data(int(starts[-1]))

    def each(rank: Rank, act: Callable[[Any, int], str], array: Any) -> list[str]:
        parts = [array.part(a, b) for a, b in zip(starts, starts[1:], strict=False)]
        return [act(part, n) for part, n in zip(parts, lengths, strict=True)]

    def send(rank: Rank) -> list[str]:
        return each(rank, rank.send, rank.array(whole))

    def recv(rank: Rank) -> bool:
        into = rank.array(np.zeros(len(whole), np.uint8))
        return each(rank, rank.recv, into) == ["done"] * 100 and np.array_equal(rank.bytes(into, len(whole)), whole)

    assert together(ranks("both"), send, recv) == [["done"] * 100, True]


@pytest.mark.parametrize("which", ["both", "sends"])
def test_a_reader_that_is_late(which: str, ranks: Open) -> None:
    """Bytes that the host channel has taken, but not let go of, stay where they are."""
    n = 9 * MIB + 3

    def recv(rank: Rank) -> Any:
        into = rank.array(np.zeros(n, np.uint8))
        time.sleep(0.05)
        return rank.recv(into, n), np.array_equal(rank.bytes(into, n), data(n))

    found = together(ranks(which), lambda rank: rank.send(rank.array(data(n)), n), recv)
    assert found == ["done", ("done", True)]


@pytest.mark.parametrize("host", ["shm"], indirect=True)
def test_settled_is_what_the_host_channel_has_let_go_of(ranks: Open) -> None:
    """Nobody reads, and what lies in the slots is only named: they are ours again when it has been read."""
    sender, _ = ranks("both")
    assert sender.send(sender.array(data(MIB)), MIB, timeout=0.1) == "timeout"


# ------------------------------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("host", ["tcp"], indirect=True)
def test_a_peer_that_goes_in_the_middle(ranks: Open) -> None:
    """Bytes that it sent before are received."""
    first, then = MIB + 5, 40 * MIB  # more than the sockets take
    gone = threading.Event()

    def send(rank: Rank) -> tuple[str, str]:
        found = rank.send(data(first), first), rank.send(data(then), then, timeout=0.2)
        rank.close_side()
        gone.set()
        return found

    def recv(rank: Rank) -> tuple[str, bool, str]:
        into = rank.array(np.zeros(then, np.uint8))
        gone.wait(10)
        said = rank.recv(into, first)
        return said, np.array_equal(rank.bytes(into, first), data(first)), rank.recv(into, then)

    assert together(ranks("receives"), send, recv) == [("done", "timeout"), ("done", True, "lost")]


class Cut(Pipe):
    """Its sender is gone when it is empty."""

    def peek(self, want: int) -> Any:
        head = super().peek(want)
        if head is None:
            raise ConnectionResetError
        return head


def test_all_that_came_is_read_though_a_slot_is_not_full(sides: Sides) -> None:
    pipe, aside = Cut(), Pipe()
    piece = data(60000).tobytes()
    pipe.send(1, 3 * MIB, 0, piece)
    adapters = [Adapter(aside), Adapter(pipe)]
    rank = Rank(0, sides.side(Side(adapters[0].capsule, adapters[1].capsule, adapters)), True)
    into = rank.array(np.zeros(3 * MIB, np.uint8))
    assert rank.recv(into, 3 * MIB) == "lost"
    assert rank.bytes(into, 60000).tobytes() == piece
    del into
    rank.close()


@pytest.mark.parametrize("function", ["cuMemcpyAsync", "cuEventRecord", "cuEventQuery"])
@pytest.mark.parametrize("host", ["shm"], indirect=True)
def test_what_the_driver_refuses_is_a_fault(function: str, ranks: Open) -> None:
    sender, _ = ranks("sends")
    x = put(data(3 * MIB))
    CUDA.refuse(function, 2, NUMBERS["CUDA_ERROR_UNKNOWN"])
    assert sender.send(x, 3 * MIB) == "fault"
    assert "CUDA error 999" in sender.engine.channel_error(sender.peer)


@pytest.mark.parametrize("function", ["cuMemcpyAsync", "cuEventRecord", "cuEventQuery"])
@pytest.mark.parametrize("host", ["shm"], indirect=True)
def test_what_the_driver_refuses_a_receiver_is_a_fault(function: str, ranks: Open) -> None:
    both = ranks("receives")
    into = both[1].array(np.zeros(3 * MIB, np.uint8))

    def recv(rank: Rank) -> str:
        CUDA.refuse(function, 2, NUMBERS["CUDA_ERROR_UNKNOWN"])
        return rank.recv(into, 3 * MIB)

    assert together(both, lambda rank: rank.send(data(3 * MIB), 3 * MIB, timeout=0.2), recv)[1] == "fault"


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("function", ["cuMemHostAlloc", "cuEventCreate"])
def test_a_pair_that_cannot_be_opened_leaves_nothing(function: str, nth: int) -> None:
    side, _ = python()
    pinned = channels.Pinned(DEVICE)
    CUDA.refuse(function, nth, NUMBERS["CUDA_ERROR_OUT_OF_MEMORY"])
    with pytest.raises(TransportError, match=r"GPU 0.*CUDA error 2"):
        pinned.open(side.send, side.recv)
    assert pinned.close()


@pytest.mark.parametrize("host", ["shm"], indirect=True)
def test_a_stream_that_stands_still(ranks: Open, sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its run ends by its time limit; what it may still write to is not given back before it has."""
    monkeypatch.setattr(channels, "PATIENCE", 0.05)
    sender, _ = ranks("sends")
    x, word, aside = put(data(MIB)), CUDA.alloc(4), DEVICE.stream()
    CUDA.write(word, bytes(4), aside)
    CUDA.cuStreamWaitValue32_v2(sender.stream, word, 1, NUMBERS["CU_STREAM_WAIT_VALUE_EQ"])
    assert sender.send(x, MIB, timeout=0.1) == "timeout"
    assert not sides.all[0].close() and not sides.all[0].close()
    CUDA.write(word, (1).to_bytes(4, "little"), aside)
    DEVICE.synchronize(sender.stream)
    assert sides.all[0].close()
    DEVICE.end_stream(aside)
    CUDA.cuMemFree_v2(word)
