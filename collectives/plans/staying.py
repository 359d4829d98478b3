"""Sent memory that stays as it is: who may have to send it again need not copy it (transports/channel.h, `late`).

A pure function of a plan's instructions.  Must not know: channels, and what bytes mean.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from hocket.collectives.plans.instr import Instr, Piece

LEAST = 32_768
"""Bytes of a message: a shorter one is copied as soon as one asks what its peer has of it."""


class _Write(NamedTuple):
    piece: Piece
    step: int
    number: int
    known: bool
    """Is it known when it begins, and where it writes?  A reduction begins with each piece that comes."""


def staying(steps: Sequence[Sequence[Instr]], cut: bool) -> tuple[set[int], set[int]]:
    """The numbers of the sends whose memory stays until the plan ends, or one of these writers begins; and theirs.

    cut: the plan runs in segments, so that its steps overlap; pieces that lie alike are cut alike.  Cost: n log n.
    """
    writes: dict[int, list[_Write]] = {}
    sends: list[tuple[int, int, Sequence[Piece]]] = []
    number = 0
    for at, step in enumerate(steps):
        for instr in step:
            for piece in instr.dst or ():
                writes.setdefault(piece[0], []).append(_Write(piece, at, number, _is_known(instr)))
            if instr.kind == "send" and len(instr.peers) == 1 and sum(piece[2] for piece in instr.src or ()) >= LEAST:
                sends.append((number, at, instr.src or ()))
            number += 1
    if not sends:
        return set(), set()
    for each in writes.values():
        each.sort(key=lambda write: write.piece[1])
    starts = {space: [write.piece[1] for write in each] for space, each in writes.items()}
    longest = {space: max(write.piece[2] for write in each) for space, each in writes.items()}
    stay, change = set[int](), set[int]()
    for number, at, src in sends:
        met = []
        for piece in src:
            space, first, length = piece
            if space in writes:
                low = bisect_left(starts[space], first - longest[space])
                high = bisect_right(starts[space], first + length - 1)
                met += [(piece, write) for write in writes[space][low:high] if _meet(piece, write.piece)]
        if all(_allows(piece, write, at, cut) for piece, write in met):
            stay.add(number)
            change |= {write.number for _, write in met if write.step > at}
    return stay, change


def _is_known(instr: Instr) -> bool:
    same = instr.applied is None or (instr.applied.taken, instr.applied.made) == (None, None)
    return instr.kind in ("recv", "copy", "apply") and not instr.after_sends and same


def _meet(a: Piece, b: Piece) -> bool:
    return a[1] < b[1] + b[2] and b[1] < a[1] + a[2]


def _allows(piece: Piece, write: _Write, at: int, cut: bool) -> bool:
    """May a send in step `at` leave its memory as it is, though this writes there before or behind it?"""
    if cut and piece != write.piece:
        return False
    return write.step < at or write.step > at and write.known
