"""torch's ReduceOp in hocket's words."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import hocket
from hocket.errors import ArgumentError
from hocket.extending import Op

_KINDS: Any = dist.ReduceOp.RedOpType
NAMES = {
    _KINDS.SUM: "sum", _KINDS.AVG: "avg", _KINDS.PRODUCT: "prod", _KINDS.MIN: "min", _KINDS.MAX: "max",
    _KINDS.BAND: "band", _KINDS.BOR: "bor", _KINDS.BXOR: "bxor",
}  # fmt: skip
BY_NUMBER = {hash(dist.ReduceOp(kind)): name for kind, name in NAMES.items()}
"""By a ReduceOp's hash, the number of its kind: to ask it for the kind, and look that up, takes thrice as long."""
OF_BOOL = {"sum": "max", "prod": "min"}
"""NCCL's ops for bool: or, and."""


def op_of(reduce_op: Any, tensor: torch.Tensor) -> Op:
    """`reduce_op` is a ReduceOp (or its RedOpType).  PREMUL_SUM multiplies each rank's tensor by its factor first."""
    kind = getattr(reduce_op, "op", reduce_op)
    if kind == _KINDS.PREMUL_SUM:
        factor = reduce_op.__getstate__()[1]
        return hocket.premul_sum(float(factor))
    name = NAMES.get(kind)
    if name is None:
        raise ArgumentError(
            f"{reduce_op} is not a reduction of hocket's; known: {', '.join(NAMES.values())}, PREMUL_SUM"
        )
    return OF_BOOL.get(name, name) if tensor.dtype is torch.bool else name
