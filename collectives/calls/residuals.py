"""Values of `residual=` and `owner_residual=`: float32 beside those that are encoded, for what encodings lose."""

from __future__ import annotations

import dataclasses
from typing import Any

from hocket.algorithms.language.contract import reduces, takers
from hocket.collectives.arrays.buffers import Buffer, describe, overlap
from hocket.collectives.calls.ask import Ask
from hocket.collectives.calls.call import Call
from hocket.collectives.calls.shapes import writable
from hocket.errors import ArgumentError
from hocket.kernels.codecs import HALVES
from hocket.kernels.dtypes import DType

COLLECTIVES = takers("residual")
SUMS = tuple(filter(reduces, COLLECTIVES))

Pair = tuple[Buffer | None, Buffer | None]
"""(before, after)"""


def refuse(ask: Ask) -> None:
    """Raise ArgumentError if a call by codec="auto" has one."""
    if ask.residual is not None or ask.owner_residual is not None:
        raise ArgumentError("residual= needs a named codec, such as codec='int8': codec='auto' may choose float32")


def attached(call: Call, ask: Ask) -> Call:
    """The same call, encoded already, with what `ask` has.  Raises ArgumentError if it cannot have that."""
    if ask.residual is None and ask.owner_residual is None:
        return call
    pairs: list[Pair] = []
    for name, given, these in (("residual", ask.residual, COLLECTIVES), ("owner_residual", ask.owner_residual, SUMS)):
        if given is None:
            pairs += [(None, None)]
            continue
        if call.encoded is None:
            raise ArgumentError(f"{name}= keeps what an encoding loses: pass a codec too, such as codec='int8'")
        if call.collective not in these:
            raise ArgumentError(f"{call.collective} takes no {name}=; {', '.join(these)} do")
        pairs += [_pair(call, given, name)]
    _check_memory(call, pairs)
    halves = HALVES[call.encoded.name] if isinstance(call.encoded, DType) else call.encoded
    return dataclasses.replace(call, encoded=halves, residuals=tuple(each for pair in pairs for each in pair))


def _pair(call: Call, given: Any, name: str) -> Pair:
    """Two arrays like x, of which the first may be None; one array is both.  The second may be x itself."""
    if isinstance(given, (tuple, list)):
        if len(given) != 2:
            raise ArgumentError(f"{name}= must be (before, after), or one array for both; got {len(given)} arrays")
    else:
        given = given, given
    before = None if given[0] is None else describe(given[0], f"{name}[0]")
    after = writable(describe(given[1], f"{name}[1]"), f"{name}[1]")
    for i, each in enumerate((before, after)):
        if each is None:
            continue
        if each.dtype.name != "float32" or each.count != call.model.count:
            wanted = f"float32{list(call.model.shape)}, as x"
            raise ArgumentError(f"{name}[{i}] must be {wanted}; got {each.dtype.name}{list(each.shape)}")
        if each.host is not None and not each.foreign:
            raise ArgumentError(f"{name}[{i}] is not contiguous; pass an array that is")
    return before, after


def _check_memory(call: Call, pairs: list[Pair]) -> None:
    everything = [call.src, call.dst, *(each for pair in pairs for each in pair)]
    places = {each.device if each.foreign else None for each in everything if each is not None}
    if len(places) > 1:
        where = " and ".join(sorted("host memory" if at is None else f"GPU {at}" for at in places))
        raise ArgumentError(f"residuals must be where x and the result are; these arrays are in {where}")
    in_place = call.src is not None and call.dst is not None and overlap(call.src, call.dst)
    others = [call.dst, call.src] if in_place else [call.dst]
    for before, after in pairs:
        if any(_shared(each, other) for each in (before, after) for other in others):
            raise ArgumentError(
                "a residual shares memory with the result or the other residual; it needs memory of its own"
            )
        if any(_shared(*two, in_part=True) for two in ((before, after), (before, call.src), (after, call.src))):
            raise ArgumentError(
                "a residual overlaps x, or before overlaps after, in part; pass the same memory, or separate memory"
            )
        others += [before, after]


def _shared(a: Buffer | None, b: Buffer | None, in_part: bool = False) -> bool:
    """Do they share memory?  `in_part`: and do not begin at one place, as arrays of one length do that are the same?"""
    return a is not None and b is not None and bool(overlap(a, b)) and not (in_part and a.address == b.address)
