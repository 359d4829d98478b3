"""The laws of a transport's channels (transports/channel.h), as functions that any package can call.

    from conformance import LAWS
    @pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
    def test_my_transport(law):
        law(pair)

`pair()` gives two `Side`s that are connected to each other.  Each law drives them through the engine, as ranks 0
and 1, with plans of one step; the sides may be in one process, each driven by a thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy

from hocket.collectives.engine import CODES, Engine
from hocket.collectives.plan import Plan

DONE, LOST, MISMATCH, TIMED_OUT = (CODES[name] for name in ("done", "lost", "mismatch", "timeout"))
LARGE = 5_000_003
"""Bytes: more than any buffer, and no multiple of anything."""
EAGER = 4096
"""Bytes that a channel takes though nobody reads: the lowering lets two ranks send so much before they receive."""
BOUND = 64 << 20
"""Bytes after which a sender whom nobody reads must have been stopped."""
PATIENCE = 60.0


@dataclass
class Side:
    """One end: capsules, what keeps them alive, and how it is closed (None: it cannot be, as memory cannot)."""

    send: Any
    recv: Any
    owner: Any
    close: Callable[[], None] | None = None


Pair = Callable[[], tuple[Side, Side]]


class End:
    """A rank of two, with an engine over a side."""

    def __init__(self, rank: int, side: Side) -> None:
        self.rank, self.side = rank, side
        self.engine = Engine(rank, 2, 200)
        self.engine.connect(1 - rank, side.send, side.recv, side.owner)

    def run(self, *instrs: Any, tag: int | None = None, timeout: float = PATIENCE, source: Any = None,
            target: Any = None) -> int:  # fmt: skip
        """One step of these instructions; its code."""
        plan = Plan([list(instrs)], itemsize=1, dtype=0, scratch=0, segment=0, fingerprint=0, collective="law",
                    algorithm="law", text="law")  # fmt: skip
        where = [0 if a is None else a.ctypes.data for a in (source, target)]
        return self.engine.execute(plan, *where, timeout=timeout, tag=tag)

    def send(self, data: Any, tag: int | None = None, timeout: float = PATIENCE, cuts: int = 1) -> int:
        return self.run(("send", [1 - self.rank], -1, False, _pieces(0, len(data), cuts), None), source=data, tag=tag,
                        timeout=timeout)  # fmt: skip

    def recv(self, length: int, tag: int | None = None, timeout: float = PATIENCE, cuts: int = 1) -> tuple[int, Any]:
        into = numpy.full(length, 0xEE, numpy.uint8)
        code = self.run(("recv", [1 - self.rank], -1, False, None, _pieces(1, length, cuts)), target=into, tag=tag,
                        timeout=timeout)  # fmt: skip
        return code, into


def _pieces(space: int, length: int, cuts: int) -> list[tuple[int, int, int]]:
    edges = [length * i // cuts for i in range(cuts + 1)]
    return [(space, a, b - a) for a, b in zip(edges, edges[1:], strict=False)]


def data(length: int, seed: int = 0) -> Any:
    return numpy.random.default_rng(seed).integers(0, 256, length, numpy.uint8)


def both(pair: Pair, first: Callable[[End], Any], second: Callable[[End], Any]) -> tuple[Any, Any]:
    """What `first(end 0)` and `second(end 1)` give, each in a thread."""
    results: list[Any] = [None, None]
    ends = [End(rank, side) for rank, side in enumerate(pair())]

    def call(i: int) -> None:
        try:
            results[i] = (first, second)[i](ends[i])
        except BaseException as error:  # raised below, in the caller's thread
            results[i] = error

    threads = [threading.Thread(target=call, args=(i,), daemon=True) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE + 30)
        assert not thread.is_alive(), "a side hangs: some wait does not end"
    for end in ends:
        if end.side.close is not None:
            end.side.close()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results[0], results[1]


def _carried(pair: Pair, lengths: list[int], cuts: tuple[int, int] = (1, 1)) -> None:
    """Messages of these lengths arrive in order and unchanged."""

    def send(end: End) -> list[int]:
        codes = [DONE]
        for i, n in enumerate(lengths):
            if codes[-1] == DONE:
                codes.append(end.send(data(n, i), cuts=cuts[0]))
        return codes[1:]

    def recv(end: End) -> None:
        for i, n in enumerate(lengths):
            code, got = end.recv(n, cuts=cuts[1])
            assert code == DONE, f"message {i} of {n} bytes: {code}, {end.engine.error}"
            assert numpy.array_equal(got, data(n, i)), f"message {i} of {n} bytes arrived changed"

    codes, _ = both(pair, send, recv)
    assert codes == [DONE] * len(lengths)


# --- the laws

def messages_arrive_in_order(pair: Pair) -> None:
    _carried(pair, [1, 8, 47, 48, 49, 64, 1000, 4095, 4096, 4097, 65535, 65536, 65537, 3, 200000, 5])


def many_small_messages_arrive(pair: Pair) -> None:
    _carried(pair, [i % 61 for i in range(700)])


def empty_messages_are_messages(pair: Pair) -> None:
    _carried(pair, [0, 0, 1, 0, 70000, 0, 0, 0])


def a_message_may_exceed_every_buffer(pair: Pair) -> None:
    _carried(pair, [LARGE, 1, LARGE])


def a_message_in_pieces_is_one_message(pair: Pair) -> None:
    """The two sides need not cut at the same places."""
    _carried(pair, [100, 7000, 300001, 9], cuts=(9, 5))


def both_directions_at_once(pair: Pair) -> None:
    """Two ranks that send to each other more than any buffer, and receive meanwhile, both end."""

    def swap(end: End) -> Any:
        mine, into = data(LARGE, end.rank), numpy.zeros(LARGE, numpy.uint8)
        peer, whole = [1 - end.rank], _pieces(0, LARGE, 1)
        instrs = ("send", peer, -1, False, whole, None), ("recv", peer, -1, False, None, _pieces(1, LARGE, 1))
        code = end.run(*instrs, source=mine, target=into)
        return code, numpy.array_equal(into, data(LARGE, 1 - end.rank))

    assert both(pair, swap, swap) == ((DONE, True), (DONE, True))


def a_short_message_needs_no_reader(pair: Pair) -> None:
    """Both send before either receives."""

    def swap(end: End) -> Any:
        code = end.send(data(EAGER, end.rank), tag=7)
        got, into = end.recv(EAGER, tag=7)
        return code, got, numpy.array_equal(into, data(EAGER, 1 - end.rank))

    assert both(pair, swap, swap) == ((DONE, DONE, True), (DONE, DONE, True))


def a_sender_whom_nobody_reads_is_stopped(pair: Pair) -> None:
    """... after a bounded number of bytes; and of messages, though they be empty (a header is 16 bytes at least)."""
    for length in (65536, 64, 0):
        many = [("send", [1], -1, False, _pieces(0, length, 1), None)] * 1024
        limit = BOUND // max(length, 64) // 1024

        def send(end: End, length: int = length, many: Any = many, limit: int = limit) -> int:
            for i in range(limit):
                if end.run(*many, source=data(length), timeout=0.4) == TIMED_OUT:
                    return i
            return limit

        sent, _ = both(pair, send, lambda end: None)
        assert sent < limit, f"{sent * 1024} messages of {length} bytes were taken though nobody reads"


def a_stopped_sender_goes_on(pair: Pair) -> None:
    """A slow reader loses nothing."""
    gate = threading.Event()
    lengths = [65536] * 40 + [0, 1] * 200

    def send(end: End) -> list[int]:
        threading.Timer(0.3, gate.set).start()
        return [end.send(data(n, i)) for i, n in enumerate(lengths)]

    def recv(end: End) -> bool:
        gate.wait(PATIENCE)
        return all(numpy.array_equal(end.recv(n)[1], data(n, i)) for i, n in enumerate(lengths))

    assert both(pair, send, recv) == ([DONE] * len(lengths), True)


def the_header_comes_before_the_payload(pair: Pair) -> None:
    """What does not fit is noticed at the head, while most of the message is still with its sender."""

    def send(end: End) -> int:
        return end.send(data(LARGE), timeout=0.3)

    for calls_ahead, length in ((0, LARGE + 1), (0, 0), (1, LARGE)):

        def recv(end: End, calls_ahead: int = calls_ahead, length: int = length) -> Any:
            for _ in range(calls_ahead):
                end.send(data(1))  # the tag holds the number of the call: it is another one than the sender's
            return end.recv(length)

        _, (code, into) = both(pair, send, recv)
        assert code == MISMATCH
        assert (into == 0xEE).all(), "bytes of a message that is not ours were written"


def closing_is_noticed(pair: Pair) -> None:
    """What was sent before is still received; then the peer is lost.  For sides that can be closed."""

    def send(end: End) -> int:
        code = end.send(data(EAGER))
        if end.side.close is not None:
            end.side.close()
        return code

    def recv(end: End) -> Any:
        first = end.recv(EAGER)[0]
        return (first, end.recv(1, timeout=10)[0]) if end.side.close is not None else (first, LOST)

    assert both(pair, send, recv) == (DONE, (DONE, LOST))


def a_failed_run_leaves_the_memory_alone(pair: Pair) -> None:
    """Who gave up waiting has his array back: what comes later is not written there, what he sent is not read."""
    late = threading.Event()

    def send(end: End) -> None:
        late.wait(PATIENCE)
        end.send(data(LARGE), timeout=0.5)

    def recv(end: End) -> Any:
        code, into = end.recv(LARGE, timeout=0.2)
        into[:] = 7
        late.set()
        again = end.recv(LARGE, timeout=0.5)[0]  # whatever is under way may go on meanwhile
        return code, again, bool((into == 7).all())

    assert both(pair, send, recv)[1] == (TIMED_OUT, TIMED_OUT, True)


LAWS: list[Callable[[Pair], None]] = [
    messages_arrive_in_order, many_small_messages_arrive, empty_messages_are_messages,
    a_message_may_exceed_every_buffer, a_message_in_pieces_is_one_message, both_directions_at_once,
    a_short_message_needs_no_reader, a_sender_whom_nobody_reads_is_stopped, a_stopped_sender_goes_on,
    the_header_comes_before_the_payload, closing_is_noticed, a_failed_run_leaves_the_memory_alone,
]  # fmt: skip


def a_multicast_reaches_every_reader(sides: Callable[[int], list[list[Side | None]]], size: int = 4) -> None:
    """Rank 0 sends one message to all others at once; mixed with messages to single ones, everything is in order.

    `sides(size)[a][b]`: rank a's side towards rank b (None on the diagonal).
    """
    table = sides(size)
    engines = [Engine(r, size, 200) for r in range(size)]
    for a, b in ((a, b) for a in range(size) for b in range(size) if a != b):
        side = table[a][b]
        assert side is not None
        engines[a].connect(b, side.send, side.recv, side.owner)
    assert all(engines[0].multicasts(r) for r in range(1, size))
    lengths = [0, 1, 48, 49, 5000, 65536, 65537, 300001] * 6
    wrong: list[str] = []

    def plan(kind: str, peers: list[int], length: int) -> Plan:
        src, dst = (_pieces(0, length, 1), None) if kind == "send" else (None, _pieces(1, length, 1))
        return Plan([[(kind, peers, -1, False, src, dst)]], itemsize=1, dtype=0, scratch=0, segment=0, fingerprint=0,
                    collective="law", algorithm="law", text="law")  # fmt: skip

    def root() -> None:
        for i, n in enumerate(lengths):
            x = data(n, i)
            peers = list(range(1, size)) if i % 3 else [1 + i % (size - 1)]
            if engines[0].execute(plan("send", peers, n), x.ctypes.data, 0, timeout=PATIENCE, tag=0) != DONE:
                wrong.append(f"message {i} could not be sent")
            x[:] = 0  # ours again

    def leaf(rank: int) -> None:
        for i, n in enumerate(lengths):
            if i % 3 or rank == 1 + i % (size - 1):
                into = numpy.full(n, 0xEE, numpy.uint8)
                code = engines[rank].execute(plan("recv", [0], n), 0, into.ctypes.data, timeout=PATIENCE, tag=0)
                if code != DONE or not numpy.array_equal(into, data(n, i)):
                    wrong.append(f"rank {rank}, message {i}: {code}")

    threads = [threading.Thread(target=root, daemon=True)]
    threads += [threading.Thread(target=leaf, args=(r,), daemon=True) for r in range(1, size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE + 30)
        assert not thread.is_alive(), "a rank hangs"
    assert not wrong, wrong
