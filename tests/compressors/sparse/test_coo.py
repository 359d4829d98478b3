"""Sparse COO tensors: the sum of the dense ones."""

from __future__ import annotations

import pytest
import torch

import hocket
from hocket.compression.sparse.coo import allreduce_coo
from hocket.errors import ArgumentError

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.int16)


def given(rank: int, dtype: torch.dtype) -> torch.Tensor:
    """Two sparse axes and a dense one; some entries are given twice, some by all ranks, and rank 0 brings none."""
    dice = torch.Generator().manual_seed(rank)
    count = 0 if rank == 0 else 20 + rank
    places = torch.stack([torch.randint(0, n, (count,), generator=dice) for n in (3, 9)])
    values = torch.randint(1, 9, (count, 4), generator=dice).to(dtype)
    values = values * (2 + 1j) if dtype.is_complex else values
    return torch.sparse_coo_tensor(places, values, (3, 9, 4), check_invariants=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_it_is_the_sum_of_the_dense_tensors(dtype: torch.dtype, op: str) -> None:
    found = hocket.local_world(4).run(lambda comm: allreduce_coo(comm, given(comm.rank, dtype), op))
    wide = torch.complex128 if dtype.is_complex else torch.float64
    total = sum(given(r, dtype).to(wide).to_dense() for r in range(4)) / (4 if op == "avg" else 1)
    for each in found:
        assert each.is_coalesced() and each.dtype == dtype and torch.equal(each.to_dense(), total.to(dtype))


def test_what_is_refused() -> None:
    def run(comm: hocket.Communicator) -> None:
        with pytest.raises(ArgumentError, match="strided tensors are not supported"):
            allreduce_coo(comm, torch.eye(3), "sum")
        with pytest.raises(ArgumentError, match="'max' is not SUM or AVG"):
            allreduce_coo(comm, torch.eye(3).to_sparse(), "max")

    hocket.local_world(2).run(run)
