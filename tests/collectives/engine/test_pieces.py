"""A message over shared memory comes in pieces, so that its reader begins before its writer has ended."""

from __future__ import annotations

import numpy as np
import pytest

from hocket.collectives.plans.instr import Instr
from hocket.conformance.ends import End, Side, data, each, pieces
from hocket.transports.shm.channels import RingChannels
from hocket.transports.shm.window import Window

KB = 1024


@pytest.mark.parametrize(
    ("length", "wanted"),
    [(8 * KB, [8]), (64 * KB, [16] * 4), (40 * KB, [16, 16, 8]), (768 * KB, [64] * 12)],
)
def test_pieces(length: int, wanted: list[int]) -> None:
    windows = [Window(), Window()]
    rings = [RingChannels(r, windows) for r in range(2)]
    ends = []
    for r, own in enumerate(rings):
        side = Side(*own.open(1 - r, rings[1 - r].offer()), own)
        ends.append(End(r, [None, side] if r == 0 else [side, None]))
    sent, label, seen = data(length), 1 << 32, []

    def read(operands: list[memoryview], out: memoryview) -> None:
        seen.append(len(operands[0]) // KB)
        out[:] = operands[0]

    into = np.zeros(length, np.uint8)
    there = Instr("send", [1], src=pieces(0, length))
    back = Instr("reduce", [0], dst=pieces(1, length))
    ways = [lambda end: end.run(there, tag=label, source=sent), lambda end: end.run(back, target=into, user=read)]
    assert each(ends, ways) == ["done", "done"]
    assert seen == wanted and (into == sent).all()
