"""The copy of what a rank sends: made while slots are filled, by the same loads; else behind."""

from __future__ import annotations

import os

import numpy as np
import pytest

from hocket.algorithms.language.registry import get
from hocket.collectives.engine.engine import CODES
from hocket.collectives.plans.instr import IN, OUT, About, ChunkLayout, Instr
from hocket.collectives.plans.lower import lower
from hocket.collectives.plans.plan import Plan
from hocket.conformance.ends import End, Side, data, each, pieces
from hocket.transports.shm.channels import RingChannels
from hocket.transports.shm.window import Window

KB = 1024
SENT, ALSO = 1, 2
"""Seeds of what is sent, and of what the copy reads: in a call of a user's they are the same bytes."""


def ranks(size: int, checked: bool) -> list[End]:
    windows = [Window() for _ in range(size)]
    rings = [RingChannels(r, windows, [os.getpid()] * size, checked) for r in range(size)]
    for ring in rings:
        ring.read_from(1 << 22, None)  # whoever made this CPU
    sides = [[None if p == r else Side(*rings[r].open(p, rings[p].offer()), rings[r]) for p in range(size)]
             for r in range(size)]  # fmt: skip
    return [End(r, sides[r]) for r in range(size)]


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize(
    ("size", "length", "way", "came", "kept"),
    [
        (2, 40, "", SENT, ALSO),  # no slot is filled for so few: the copy is made
        (2, 64 * KB, "", SENT, SENT),
        (2, 3 * KB * KB + 1, "", SENT, SENT),
        (2, 1 * KB * KB, "reading", SENT, ALSO),
        (2, 1 * KB * KB, "writing", SENT, ALSO),
        (3, 64 * KB, "", SENT, SENT),
        (3, 1 * KB * KB, "reading", SENT, ALSO),
    ],
)
def test_the_copy_of_what_is_sent(
    size: int, length: int, way: str, came: int, kept: int, checked: bool
) -> None:  # fmt: skip
    here = np.concatenate([data(length, SENT), data(length, ALSO)])
    copy = np.zeros(length, np.uint8)
    weighs = ((way,), 1, way) if way else ()

    def sends(end: End) -> int:
        others = list(range(1, size))
        groups = [others] if end.engine.multicasts(1) else [[peer] for peer in others]
        step = [Instr("send", peers, src=pieces(0, length), kept=pieces(1, length)) for peers in groups]
        step.append(Instr("copy", src=[(0, length, length)], dst=pieces(1, length), after_sends=True))
        plan = Plan([step], About("law", "law", "law"), traffic="moved", weighs=weighs)
        return end.engine.execute(plan, here.ctypes.data, copy.ctypes.data, timeout=60, tag=1 << 32)

    told, *got = each(ranks(size, checked), [sends] + [lambda end: end.recv(length, of=0)] * (size - 1))
    assert told == CODES["done"]
    assert all(code == "done" and (into == data(length, came)).all() for code, into in got)
    assert (copy == data(length, kept)).all()


@pytest.mark.parametrize(("own", "copied"), [(IN, True), (OUT, False)], ids=["an array of its own", "in place"])
def test_an_allgather_says_where_its_copy_will_lie(own: int, copied: bool) -> None:
    layout = ChunkLayout([8, 8], lambda chunk: (own, 8 * chunk * (own == OUT)), lambda chunk: (OUT, 8 * chunk))
    (step,) = lower(get("allgather", "direct"), 1, 2, 0, layout).steps
    assert [instr.kept for instr in step if instr.kind == "send"] == [[(OUT, 8, 8)] if copied else None]
    assert [instr.dst for instr in step if instr.kind == "copy"] == [[(OUT, 8, 8)]] * copied
