"""algorithm="nccl": NCCL's own collective for a call on GPU arrays, or why there is none."""

from __future__ import annotations

from typing import Any, NamedTuple

from hocket.collectives.calls.call import Call
from hocket.collectives.calls.ops import Resolved
from hocket.collectives.delegates.mpi import EXACT, op_of
from hocket.control import encryption

ON_HOST = "it carries out calls on GPU arrays that go from GPU to GPU, and these are or go through host memory"
INSTEAD = "leave the choice of the algorithm to hocket"
TYPES = {
    "int8": 0, "uint8": 1, "bool": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6, "float32": 7,
    "float64": 8, "bfloat16": 9, "float8_e4m3fn": 10, "float8_e5m2": 11,
}  # fmt: skip
"""ncclDataType_t.  What is only moved goes as uint8."""
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3}
"""ncclRedOp_t."""
OF_BOOL = {"sum": 2, "prod": 3, "max": 2, "min": 3, "lor": 2, "land": 3, "bor": 2, "band": 3}


class Function(NamedTuple):
    """`op`, `root`: it takes these."""

    name: str
    op: bool = False
    root: bool = False


FUNCTIONS = {
    "allreduce": Function("ncclAllReduce", op=True), "reduce": Function("ncclReduce", op=True, root=True),
    "reduce_scatter": Function("ncclReduceScatter", op=True), "broadcast": Function("ncclBroadcast", root=True),
    "allgather": Function("ncclAllGather"), "alltoall": Function("ncclAlltoAll"),
    "gather": Function("ncclGather", root=True), "scatter": Function("ncclScatter", root=True),
}  # fmt: skip
"""The last three came with NCCL 2.28."""


def refusal(world: Any, on_gpu: bool, call: Call, how: Resolved) -> str | None:
    """Why NCCL cannot carry out this call; None if it can.  The same on all ranks."""
    dtype = call.model.dtype.name
    if call.exact is not None:
        return EXACT
    if how.user is not None or how.function is not None or how.expression is not None:
        return f"NCCL cannot call a function or an expression as op; {INSTEAD}"
    if not on_gpu:
        return ON_HOST
    if world.config.encrypt and "nccl" not in world.config.plain.split(","):
        return encryption.refused("nccl")
    if call.collective not in FUNCTIONS:
        return f"NCCL has no {call.collective}; {INSTEAD}"
    if call.private or len(set(call.counts or ())) > 1:
        return f"NCCL's blocks are all of one length, and these are not; {INSTEAD}"
    if not how.name:
        return None
    op = op_of(how)
    if call.encoded is not None and not call.codec:
        return f"NCCL adds up {dtype} as {dtype}, where an {how.name} may overflow; {INSTEAD}"
    if dtype not in TYPES:
        return f"NCCL cannot reduce {dtype}; {INSTEAD}, or convert to float32"
    if op in ("min", "max") and "float" in dtype:
        return f"NCCL's {op} of {dtype} loses a NaN; {INSTEAD}"
    known = OF_BOOL if dtype == "bool" else OPS
    return None if op in known else f"NCCL has no op {op!r} for {dtype} (it has {', '.join(known)}); {INSTEAD}"
