"""The sum of torch's sparse COO tensors, on the CPU or by a copy there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hocket.compression.sparse.allreduce import allreduce_sparse
from hocket.errors import ArgumentError

if TYPE_CHECKING:
    from hocket import Communicator

HALVES = {torch.float16: "fp16", torch.bfloat16: "bf16"}
"""Such values are sent as they are, and added up in float32."""


def allreduce_coo(comm: Communicator, tensor: torch.Tensor, op: str) -> torch.Tensor:
    """The sum ("sum") or average ("avg") of all ranks' tensors: a new one, coalesced, with the same bits on all ranks.

    They have one shape and dtype, and any number of entries.  Waits.  Cost: that of `allreduce_sparse`.
    """
    if tensor.layout is not torch.sparse_coo:
        raise ArgumentError(f"all_reduce: {tensor.layout} tensors are not supported; pass tensor.to_sparse_coo()")
    if op not in ("sum", "avg"):
        raise ArgumentError(f"all_reduce of a sparse tensor: op {op!r} is not SUM or AVG")
    mine, dtype = tensor.detach().coalesce(), tensor.dtype
    values, codec = mine.values(), HALVES.get(dtype)
    plain = torch.view_as_real(values) if dtype.is_complex else values.float() if codec else values
    shape = tuple(tensor.shape[: tensor.sparse_dim()])
    places, sums = allreduce_sparse(comm, mine.indices().cpu().numpy(), plain.cpu().numpy(), shape, codec=codec)
    total = torch.from_numpy(sums)
    total = torch.view_as_complex(total) if dtype.is_complex else total
    total = (total / comm.size if op == "avg" else total).to(dtype)
    # Checked, as the places are other ranks'.  (Without check_invariants each rank would get a warning.)
    return torch.sparse_coo_tensor(
        torch.from_numpy(places), total, tensor.shape, device=tensor.device, is_coalesced=True, check_invariants=True
    )
