"""The laws.  Each is a function of a `pair` (or of `sides`) that raises AssertionError when it is broken."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from hocket.collectives.plans.instr import Instr
from hocket.conformance import ends
from hocket.conformance.ends import End, Pair, Sides, both, data, each, expect, pieces, same

LARGE = 5_000_003
"""Bytes: more than any buffer, and no multiple of anything."""
EAGER = 4096
"""Bytes that a channel takes though nobody reads: the lowering lets two ranks send so much before they receive."""
BOUND = 64 << 20
"""Bytes after which a sender whom nobody reads must have been stopped."""
STILL, NOTICED = 0.4, 2.0
"""Seconds after which a sender that does not move is stopped; and in which a peer that has closed is noticed."""


class NotOfferedError(Exception):
    """The transport does not offer what the law is about."""


def _carried(pair: Pair, lengths: list[int], cuts: tuple[int, int] = (1, 1)) -> None:
    """Messages of these lengths arrive in order and unchanged."""

    def send(end: End) -> None:
        for i, n in enumerate(lengths):
            same((i, end.send(data(n, i), cuts=cuts[0])), (i, "done"))

    def recv(end: End) -> None:
        for i, n in enumerate(lengths):
            result, got = end.recv(n, cuts=cuts[1])
            expect(result == "done", f"message {i} of {n} bytes: {result}")
            expect(numpy.array_equal(got, data(n, i)), f"message {i} of {n} bytes arrived changed")

    both(pair, send, recv)


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
        peer = [1 - end.rank]
        instrs = Instr("send", peer, src=pieces(0, LARGE)), Instr("recv", peer, dst=pieces(1, LARGE))
        result = end.run(*instrs, source=mine, target=into)
        return result, numpy.array_equal(into, data(LARGE, 1 - end.rank))

    same(both(pair, swap, swap), (("done", True), ("done", True)))


def a_short_message_needs_no_reader(pair: Pair) -> None:
    """Both send before either receives."""

    def swap(end: End) -> Any:
        sent = end.send(data(EAGER, end.rank), tag=7)
        got, into = end.recv(EAGER, tag=7)
        return sent, got, numpy.array_equal(into, data(EAGER, 1 - end.rank))

    same(both(pair, swap, swap), (("done", "done", True), ("done", "done", True)))


def a_sender_whom_nobody_reads_is_stopped(pair: Pair) -> None:
    """... after a bounded number of bytes; and of messages, though they be empty (a header is 16 bytes at least)."""
    for length in (65536, 64, 0):
        many = [Instr("send", [1], src=pieces(0, length))] * 1024
        limit = BOUND // max(length, 64) // 1024

        def send(end: End, length: int = length, many: Any = many, limit: int = limit) -> int:
            for i in range(limit):
                if end.run(*many, source=data(length), timeout=STILL) == "timeout":
                    return i
            return limit

        sent, _ = both(pair, send, lambda end: None)
        expect(sent < limit, f"{sent * 1024} messages of {length} bytes were taken though nobody reads")


def a_stopped_sender_goes_on(pair: Pair) -> None:
    """A slow reader loses nothing."""
    gate = threading.Event()
    lengths = [65536] * 40 + [0, 1] * 200

    def send(end: End) -> list[str]:
        threading.Timer(0.3, gate.set).start()
        return [end.send(data(n, i)) for i, n in enumerate(lengths)]

    def recv(end: End) -> bool:
        gate.wait(ends.PATIENCE)
        return all(numpy.array_equal(end.recv(n)[1], data(n, i)) for i, n in enumerate(lengths))

    same(both(pair, send, recv), (["done"] * len(lengths), True))


def the_header_comes_before_the_payload(pair: Pair) -> None:
    """A message that does not fit is noticed at the head, while most of it is still with its sender."""

    def send(end: End) -> str:
        return end.send(data(LARGE), timeout=0.3)

    for calls_ahead, length in ((0, LARGE + 1), (0, 0), (1, LARGE)):

        def recv(end: End, calls_ahead: int = calls_ahead, length: int = length) -> Any:
            for _ in range(calls_ahead):
                end.send(data(1))  # the tag holds the number of the call: it is another one than the sender's
            return end.recv(length)

        _, (result, into) = both(pair, send, recv)
        same(result, "mismatch")
        expect(bool((into == 0xEE).all()), "bytes of a message that is not ours were written")


def a_message_is_read_at_its_place_or_received(pair: Pair) -> None:
    """By `peek` and `consume` (a reduction), or by `recv` where there is one, in any order on one channel."""
    lengths = [0, 8, 0, 0, 70000, 100, LARGE, 65536, 1]

    def send(end: End) -> None:
        for i, n in enumerate([*lengths, *lengths]):
            same((i, end.send(data(n, i))), (i, "done"))

    def read(end: End) -> None:
        for i, n in enumerate([*lengths, *lengths]):
            own = data(n, i + 100) if i % 2 else numpy.zeros(n, numpy.uint8)
            result, got = end.reduce(own, [0]) if i % 2 else end.recv(n)
            same((i, result), (i, "done"))
            expect(numpy.array_equal(got, own ^ data(n, i)), f"message {i} of {n} bytes arrived changed")

    both(pair, send, read)


def an_element_is_read_whole(pair: Pair) -> None:
    """`want` bytes lie together however the message was cut on its way.  16: our largest; 4096: a user's."""
    for itemsize in (16, 12, 1000, 4096):
        lengths = [itemsize, 3 * itemsize, 200000 // itemsize * itemsize]

        def send(end: End, itemsize: int = itemsize, lengths: Sequence[int] = lengths) -> None:
            end.send(data(5))  # what follows lies at an odd place
            for i, n in enumerate(lengths):
                how: Any = {"cuts": 1} if itemsize == 16 else {"cuts": 3, "user": print}  # then offered in elements
                same((i, end.send(data(n, i), itemsize=itemsize, **how)), (i, "done"))

        def read(end: End, itemsize: int = itemsize, lengths: Sequence[int] = lengths) -> None:
            end.recv(5)
            for i, n in enumerate(lengths):
                result, got = end.reduce(data(n, 9), [0], itemsize)
                same((itemsize, i, result), (itemsize, i, "done"))
                expect(numpy.array_equal(got, data(n, 9) ^ data(n, i)), f"message {i} of {n} bytes arrived changed")

        both(pair, send, read)


def a_message_can_be_set_aside(pair: Pair) -> None:
    """A rank that receives the last tag first gets all messages."""
    lengths = [10, 0, LARGE, 4097, 0]

    def send(end: End) -> None:
        for tag, n in enumerate(lengths):
            same((tag, end.send(data(n, tag), tag=tag)), (tag, "done"))

    def recv(end: End) -> None:
        for tag, n in reversed(list(enumerate(lengths))):
            result, got = end.recv(n, tag=tag)
            same((tag, result), (tag, "done"))
            expect(numpy.array_equal(got, data(n, tag)), f"message {tag} of {n} bytes arrived changed")

    both(pair, send, recv)


def closing_is_noticed(pair: Pair) -> None:
    """Bytes that were taken before are still received; then the peer is lost.  (Memory cannot tell, the coordinator
    does.)"""
    closed = threading.Event()

    def send(end: End) -> str:
        result, side = end.send(data(EAGER)), end.sides[1]
        if side is not None and side.close is not None:
            side.close()
        closed.set()
        return result

    def recv(end: End) -> Any:
        closed.wait(ends.PATIENCE)
        first, into = end.recv(EAGER)
        return first, numpy.array_equal(into, data(EAGER)), end.recv(1, timeout=NOTICED)[0]

    sent, (first, unchanged, then) = both(pair, send, recv)
    same((sent, first, unchanged), ("done", "done", True))
    if then == "timeout":
        raise NotOfferedError("a closed peer is not noticed here")
    same(then, "lost")


def a_failed_run_leaves_the_memory_alone(pair: Pair) -> None:
    """A rank that gave up has its array back: what comes later is not written there, what it sent is not read."""
    late = threading.Event()

    def send(end: End) -> None:
        late.wait(ends.PATIENCE)
        end.send(data(LARGE), timeout=0.5)

    def recv(end: End) -> Any:
        result, into = end.recv(LARGE, timeout=0.2)
        into[:] = 7
        late.set()
        again = end.recv(LARGE, timeout=0.5)[0]  # whatever is under way may go on meanwhile
        return result, again, bool((into == 7).all())

    same(both(pair, send, recv)[1], ("timeout", "timeout", True))


LAWS: list[Callable[[Pair], None]] = [
    messages_arrive_in_order, many_small_messages_arrive, empty_messages_are_messages,
    a_message_may_exceed_every_buffer, a_message_in_pieces_is_one_message, both_directions_at_once,
    a_short_message_needs_no_reader, a_sender_whom_nobody_reads_is_stopped, a_stopped_sender_goes_on,
    the_header_comes_before_the_payload, a_message_is_read_at_its_place_or_received, an_element_is_read_whole,
    a_message_can_be_set_aside, closing_is_noticed, a_failed_run_leaves_the_memory_alone,
]  # fmt: skip


# --- of several ranks

def a_reduction_reads_all_heads_at_once(sides: Sides, size: int = 4) -> None:
    """Peeked heads stay where they are while the other channels are peeked."""
    lengths = [16, 0, 100, 5000, 65537, 300001]

    def leaf(end: End) -> None:
        for i, n in enumerate(lengths):
            same((i, end.send(data(n, size * i + end.rank), to=[0])), (i, "done"))

    def root(end: End) -> None:
        for i, n in enumerate(lengths):
            result, got = end.reduce(data(n, size * i), range(1, size))
            same((i, result), (i, "done"))
            total = numpy.bitwise_xor.reduce([data(n, size * i + r) for r in range(size)])
            expect(numpy.array_equal(got, total), f"reduction {i} of {n} bytes came out wrong")

    each([End(r, row) for r, row in enumerate(sides(size))], [root] + [leaf] * (size - 1))


def a_multicast_reaches_every_reader(sides: Sides, size: int = 4) -> None:
    """Rank 0 sends one message to all others at once; mixed with messages to single ones, everything is in order."""
    ranks = [End(r, row) for r, row in enumerate(sides(size))]
    if not all(ranks[0].engine.multicasts(r) for r in range(1, size)):
        raise NotOfferedError("no multicast")
    lengths = [0, 1, 48, 49, 5000, 65536, 65537, 300001] * 6

    def root(end: End) -> None:
        for i, n in enumerate(lengths):
            x = data(n, i)
            same((i, end.send(x, to=range(1, size) if i % 3 else [1 + i % (size - 1)], tag=0)), (i, "done"))
            x[:] = 0  # ours again

    def leaf(end: End) -> None:
        for i, n in enumerate(lengths):
            if i % 3 or end.rank == 1 + i % (size - 1):
                result, got = end.recv(n, of=0, tag=0)
                same((end.rank, i, result), (end.rank, i, "done"))
                expect(numpy.array_equal(got, data(n, i)), f"rank {end.rank}: message {i} of {n} bytes is wrong")

    each(ranks, [root] + [leaf] * (size - 1))


GROUP_LAWS: list[Callable[[Sides], None]] = [a_reduction_reads_all_heads_at_once, a_multicast_reaches_every_reader]
