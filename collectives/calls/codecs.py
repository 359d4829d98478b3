"""What `codec=` may be: how the elements of a call are carried on the wire.

A codec is a smaller dtype, whose kernels are in kernels/cpu/convert.h, or a block of elements (kernels/cpu/blocks.h);
plans/lower.py puts them into a plan.
"""

from __future__ import annotations

import dataclasses
import reprlib

from hocket.arguments import choices
from hocket.collectives.calls.call import CODECS, Call
from hocket.collectives.calls.shapes import writable
from hocket.errors import ArgumentError

COLLECTIVES = ("allreduce", "reduce_scatter", "allgather", "broadcast", "alltoall")
OPS = ("", "sum", "avg")


def encoded(call: Call, codec: str, op: str) -> Call:
    """The same call by this codec.  Raises ArgumentError where it has none."""
    if codec not in CODECS:
        raise ArgumentError(f"codec={reprlib.repr(codec)} is no codec; {choices(codec, CODECS)}")
    if call.collective not in COLLECTIVES:
        raise ArgumentError(f"{call.collective} takes no codec; {', '.join(COLLECTIVES)} do")
    if call.model.dtype.name != "float32":
        raise ArgumentError(f"codec={codec!r} takes float32, got {call.model.dtype.name}")
    if op not in OPS:
        raise ArgumentError(f"codec={codec!r} goes with the ops sum and avg, not with {op!r}")
    if call.collective == "broadcast":
        writable(call.model, "x")  # the root's too: it gets what the others get
    return dataclasses.replace(call, codec=codec)
