"""Values of `codec=`: how the elements of a call are carried on the wire.

A codec is a smaller dtype, whose kernels are in kernels/cpu/convert.h, or a block of elements (kernels/cpu/blocks.h);
plans/lower.py puts them into a plan.  Sums are taken in float32 and rounded once for each message.
"""

from __future__ import annotations

import dataclasses
import reprlib

from hocket.algorithms.language.contract import takers
from hocket.arguments import choices
from hocket.collectives.calls.ask import Ask
from hocket.collectives.calls.call import Call
from hocket.collectives.calls.shapes import writable
from hocket.errors import ArgumentError
from hocket.kernels.codecs import CODECS, HALVES, PACKED, Codec
from hocket.kernels.dtypes import DType, by_name

BY_NAME: dict[str, DType | Codec] = {
    "fp16": by_name("float16"), "bf16": by_name("bfloat16"), **{codec.name: codec for codec in CODECS}
}  # fmt: skip
"""float32 becomes one of these."""

COLLECTIVES = takers("codec")
AUTO = "auto"
"""The elements as they are, or the codec that pays (measuring/worth.py)."""
LOSSLESS = "lossless"
"""The same bits in fewer bytes: elements stay what they are, and their messages are packed."""
OPS = ("", "sum", "avg")
NARROW = ("float16", "float8_e4m3fn", "float8_e5m2")
"""Floats of a range that sums of a few ranks leave; bfloat16 has that of float32."""


def wire_format(codec: str | Codec) -> DType | Codec:
    """The form of the elements on the wire.  Raises ArgumentError if there is no such codec."""
    if isinstance(codec, Codec):
        return codec
    if not isinstance(codec, str):
        raise ArgumentError(f"codec={reprlib.repr(codec)} is neither a name nor made by hocket.compression")
    if codec not in BY_NAME:
        known = choices(codec, [*BY_NAME, LOSSLESS, AUTO])
        raise ArgumentError(
            f"codec={reprlib.repr(codec)} is unknown; {known}. Methods with a state, such "
            "as 'topk:0.01' and 'powersgd:4', and codecs of other packages are for "
            "hocket.compression.Compressor(comm, method)"
        )
    return BY_NAME[codec]


def check(call: Call, codec: str | Codec, op: str) -> None:
    """Raise ArgumentError if such a call has no codec."""
    if call.collective not in COLLECTIVES:
        raise ArgumentError(f"{call.collective} takes no codec; {', '.join(COLLECTIVES)} do")
    takes = tuple(PACKED) if codec == AUTO else ("float32",)
    if call.model.dtype.name not in takes:
        raise ArgumentError(f"codec={str(codec)!r} takes {', '.join(takes)}, got {call.model.dtype.name}")
    if op not in OPS:
        raise ArgumentError(f"codec={str(codec)!r} goes with the ops sum and avg, not with {op!r}")
    if codec == AUTO and call.private:
        raise ArgumentError("codec='auto' needs a length that all ranks know; alltoallv has none: name a codec")
    if call.collective == "broadcast":
        writable(call.model, "x")  # the root's too: it gets what the others get


def packed(call: Call, ask: Ask) -> Call:
    """The same call with codec="lossless".  Raises ArgumentError where it has none."""
    if call.collective not in COLLECTIVES:
        raise ArgumentError(f"{call.collective} takes no codec; {', '.join(COLLECTIVES)} do")
    if call.model.dtype.name not in PACKED:
        raise ArgumentError(f"codec='lossless' takes {', '.join(PACKED)}, got {call.model.dtype.name}")
    if ask.residual is not None or ask.owner_residual is not None:
        raise ArgumentError("codec='lossless' loses nothing that a residual could keep: omit residual=")
    if any(b is not None and (b.device >= 0 or b.foreign) for b in (call.src, call.dst)):
        raise ArgumentError("codec='lossless' is for arrays in host memory, and x is on a GPU: omit codec=, or copy it")
    return dataclasses.replace(call, codec=LOSSLESS)


def packing(call: Call) -> Codec | None:
    """The codec that packs the messages of a lossless call."""
    return PACKED[call.wire.name] if call.codec == LOSSLESS else None


def encoded(call: Call, codec: str | Codec, op: str) -> Call:
    """The same call by this codec.  Raises ArgumentError where it has none."""
    wire = wire_format(codec)
    check(call, codec, op)
    if op and isinstance(wire, DType) and wire.name == "float16":
        wire = HALVES[wire.name]  # sums may be larger than halves can be
    return dataclasses.replace(call, codec=str(codec), encoded=wire)


def widened(call: Call, op: str, size: int) -> Call:
    """The same call; an average of small floats goes as float32, as their sum may overflow where the average fits."""
    wide = op == "avg" and size > 1 and call.model.dtype.name in NARROW
    return dataclasses.replace(call, encoded=by_name("float32")) if wide else call
