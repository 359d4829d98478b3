"""What `codec=` may be: how the elements of a call are carried on the wire.

So far a codec is a smaller dtype, whose kernels are in kernels/cpu/convert.h; plans/lower.py puts them into a plan.
"""

from __future__ import annotations

import reprlib

from hocket.arguments import choices
from hocket.collectives.calls.call import Call
from hocket.errors import ArgumentError
from hocket.kernels.dtypes import DType, by_name

CODECS = {"fp16": by_name("float16"), "bf16": by_name("bfloat16")}
"""By name: the dtype that float32 becomes.  Sums are taken in float32 and rounded once for each message."""
COLLECTIVES = ("allreduce", "reduce_scatter", "allgather", "broadcast", "alltoall")
OPS = ("", "sum", "avg")


def wire(codec: str | None, call: Call, op: str) -> DType | None:
    """The dtype on the wire; None: that of the arrays."""
    if codec is None:
        return None
    if codec not in CODECS:
        raise ArgumentError(f"codec={reprlib.repr(codec)} is no codec; {choices(codec, CODECS)}")
    if call.collective not in COLLECTIVES:
        raise ArgumentError(f"{call.collective} takes no codec; {', '.join(COLLECTIVES)} do")
    if call.model.dtype.name != "float32":
        raise ArgumentError(f"codec={codec!r} takes float32, got {call.model.dtype.name}")
    if op not in OPS:
        raise ArgumentError(f"codec={codec!r} goes with the ops sum and avg, not with {op!r}")
    return CODECS[codec]
