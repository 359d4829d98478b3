"""The sum of sparse tensors: every rank gets all ranks' entries, and adds up those of one place.

As Gloo does it; cost: an allgather of all entries, so it pays as long as the tensors together are far from full.
"""

from __future__ import annotations

from typing import Any

import torch

from hocket.collectives.communicator.communicator import Communicator
from hocket.errors import ArgumentError

Tensor = torch.Tensor


def allreduce(comm: Communicator, tensor: Tensor, op: Any) -> None:
    """In place, in the calling thread.  All ranks' tensors have one shape and dtype, and any number of entries."""
    if tensor.layout is not torch.sparse_coo:
        raise ArgumentError(f"all_reduce: {tensor.layout} tensors are not taken; pass tensor.to_sparse_coo()")
    if op not in ("sum", "avg"):
        raise ArgumentError(f"all_reduce of a sparse tensor: op {op!r} is not SUM or AVG")
    mine = tensor.detach().coalesce()
    counts = comm.allgather(torch.tensor([mine._nnz()])).tolist()
    places = comm.allgatherv(mine.indices().t().contiguous(), counts)
    values = comm.allgatherv(mine.values().contiguous(), counts)
    if op == "avg":
        values = values / comm.size
    # Checked, as the places are other ranks'.  (Without check_invariants each rank would get a warning.)
    total = torch.sparse_coo_tensor(places.t(), values, tensor.shape, check_invariants=True).coalesce()
    with torch.no_grad():
        tensor.copy_(total)
