"""allreduce and broadcast of lists, tuples and dicts of arrays: small ones go as one message."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hocket.algorithms.language.contract import takers
from hocket.arguments import kind
from hocket.collectives.arrays.buffers import describe
from hocket.collectives.base.groups import open_group
from hocket.collectives.calls.ask import Ask, Lasting
from hocket.collectives.members.members import Members
from hocket.collectives.quick.packing import Known, Packed
from hocket.collectives.quick.shortcut import NOTHING
from hocket.errors import ArgumentError

COLLECTIVES = takers("trees")
NEAR, FAR = 4 << 10, 64 << 10
"""Bytes of the largest array that is copied, inside a host and over a network: of longer ones a call costs less."""
SHOWN = 3
"""Arrays that an error shows of a list."""
LABELS = 1000
"""Lists of different arrays that are remembered."""
_labels: dict[int, Lasting] = {}


def carry_out(
    call: Callable[[Any, Any, Ask], Any], tree: Any, out: Any, ask: Ask, members: Members, lists: Known
) -> Any:
    """`call(x, out, ask)` for all arrays of `tree`, in place."""
    collective = ask.collective
    if collective not in COLLECTIVES:
        these = " and ".join(COLLECTIVES)
        raise ArgumentError(f"x is {kind(tree)}, and {collective} takes one array; {these} take lists")
    if out is not None or ask.residual is not None or ask.owner_residual is not None:
        raise ArgumentError(f"x is {kind(tree)}, which {collective} changes in place: out and residuals must be None")
    written = collective != "broadcast" or members.rank != ask.root
    packed = Packed(tree, NEAR if len(members.groups) == 1 else FAR, written, lists.spare)
    label = _label(packed.leaves, packed.digest)
    ask = ask._replace(within=label)
    arrays = [*packed.vectors, *packed.alone] or [NOTHING.copy()]
    together = open_group()
    if not ask.async_op and together is None:
        for each in arrays:
            call(each, None, ask)
        packed.unpack()
        lists.learn(tree, packed, label)
        return tree
    works = [call(each, None, ask._replace(async_op=True)) for each in arrays]
    last = works.pop().giving(tree).ending(partial(_end, works, packed))
    if ask.async_op or together is None:
        return last
    together.append(last)
    return tree


def _end(works: list[Any], packed: Packed) -> None:
    for work in works:
        work.wait()
    packed.unpack()


def _label(leaves: list[Any], digest: int) -> Lasting:
    """The common words of calls of such a list: in errors, and compared between ranks."""
    label = _labels.get(digest)
    if label is None:
        if len(_labels) >= LABELS:
            _labels.clear()
        some = ", ".join(repr(describe(each)) for each in leaves[:SHOWN])
        more = ", ..." if len(leaves) > SHOWN else ""
        text = f"a list of {len(leaves)} arrays ({some}{more}; {digest & 0xFFFFFFFF:08x})"
        label = _labels[digest] = Lasting(text)
    return label
