"""Orders: which tensors are the most urgent.

    fifo        as they become ready, on one lane: wait-free backpropagation
    priority    as the forward pass uses them, by declaration: P3
    tic         as a recorded step has used them
    tac         by what each transfer lets the computation do, in a recorded step

ByteScheduler is "priority" with slices.  Its credit, how many bytes may be under way, is not here: one credit for all
lanes deadlocks, as two ranks may spend it on two lanes, each of which waits for the other.  In its place lower lanes
are held while a higher one moves (collectives/waiting/progress.pyx), and slices of a lane go one after the other.

Sources: Zhang et al., "Poseidon", ATC 2017; Jayarajan et al., "Priority-based Parameter Propagation for Distributed DNN
Training", MLSys 2019; Hashemi et al., "TicTac", MLSys 2019; Peng et al., "A Generic Communication Scheduler for
Distributed DNN Training Acceleration", SOSP 2019.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cmp_to_key

from hocket.training.overlap.record import Consumer, Recorded, missing

ORDERS = ("fifo", "priority", "tic", "tac")
AGREED = "agreed"
"""For programs that declare nothing: as ranks have them ready, and as rank 0 tells all of them (agreed.py)."""


def tic(step: Recorded, nbytes: Sequence[int]) -> list[int]:
    """By who is needed first; those needed together, as declared.

    >>> tic(Recorded([0, 1, 2], [Consumer(frozenset([2]), 1.0), Consumer(frozenset([0, 1]), 1.0)], {}), [4, 4, 4])
    [2, 0, 1]
    """
    needed = list(dict.fromkeys(i for consumer in step.consumers for i in sorted(consumer.needs)))
    return needed + missing(needed, len(nbytes))


def tac(step: Recorded, nbytes: Sequence[int]) -> list[int]:
    """TicTac's timing-aware order: A before B iff min(P_B, M_A) < min(P_A, M_B), one after the other.

    M: seconds of a transfer.  P: seconds of computation that becomes possible with this transfer alone.  Ties: the one
    by which, with others, something becomes possible the soonest; then as declared.  What was sent counts as there.

    >>> long, short = Consumer(frozenset([0]), 5.0), Consumer(frozenset([1]), 1.0)
    >>> tac(Recorded([0, 1], [short, long], {}), [100, 100])
    [0, 1]
    """
    transfer = _transfers(step, nbytes)
    left = list(range(len(nbytes)))
    order: list[int] = []
    while left:
        unblocked = {i: _unblocked(step.consumers, {*order, i}) - _unblocked(step.consumers, {*order}) for i in left}
        soonest = {i: _soonest(step.consumers, {*order}, i, transfer) for i in left}

        def compared(a: int, b: int, p: dict[int, float] = unblocked, m: dict[int, float] = soonest) -> int:
            mine, other = (min(p[b], transfer[a]), m[a], a), (min(p[a], transfer[b]), m[b], b)
            return (mine > other) - (mine < other)

        first = min(left, key=cmp_to_key(compared))
        left.remove(first)
        order.append(first)
    return order


RECORDED: dict[str, Callable[[Recorded, Sequence[int]], list[int]]] = {"tic": tic, "tac": tac}
"""Orders that need a recorded step: of it and the tensors' bytes, the tensors by urgency."""


def _transfers(step: Recorded, nbytes: Sequence[int]) -> list[float]:
    """Seconds by tensor, at the rate of all of them together: what one took counts others' bytes, too."""
    seconds = sum(step.seconds.values())
    known = sum(nbytes[i] for i in step.seconds)
    rate = seconds / known if known and seconds else 1e-9
    return [each * rate for each in nbytes]


def _unblocked(consumers: Sequence[Consumer], sent: set[int]) -> float:
    """Seconds of computation that need nothing but these tensors."""
    possible: set[int] = set()
    for i, consumer in enumerate(consumers):  # those before it stand before it
        if consumer.needs <= sent and consumer.after <= possible:
            possible.add(i)
    return sum(consumers[i].seconds for i in possible)


def _soonest(consumers: Sequence[Consumer], sent: set[int], tensor: int, transfer: Sequence[float]) -> float:
    """Seconds of the fewest transfers, this one among them, with which some consumer has all that it needs."""
    needed: list[set[int]] = []
    for consumer in consumers:
        needed.append(set(consumer.needs).union(*(needed[i] for i in consumer.after)))
    more = [needs - sent for needs in needed if tensor in needs - sent]
    return min((sum(transfer[i] for i in each) for each in more), default=math.inf)
