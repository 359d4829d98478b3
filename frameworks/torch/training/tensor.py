"""Linear layers that are cut among ranks, for torch: `hocket.training.large.tensor` says the law, costs and sources."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hocket.errors import ArgumentError
from hocket.torch import functions
from hocket.training.large.agreeing import agree
from hocket.training.large.tensor import part
from hocket.training.large.told import tell

Tensor = torch.Tensor


class _LinearPart(nn.Module):
    """A part of `linear`, whose weight and bias are alike on all ranks; `axis`: of its weight."""

    axis: int
    what: str

    def __init__(self, linear: nn.Linear, comm: Any, *, sequence: bool = False) -> None:
        super().__init__()
        self.comm, self.sequence = functions.communicator_of(comm), sequence
        agree(self.comm, type(self).__name__, lambda: self._said(linear))
        mine = part(linear.weight.shape[self.axis], self.comm, self.what)
        with torch.no_grad():
            self.weight = nn.Parameter(linear.weight.narrow(self.axis, mine.start, mine.stop - mine.start).clone())
            self.bias = None if linear.bias is None else nn.Parameter(self._bias(linear.bias, mine).clone())
        tell(self.weight, self.comm)
        if self.bias is not None:
            tell(self.bias, self.comm, alike=len(self.bias) == len(linear.bias))

    def _bias(self, bias: Tensor, mine: slice) -> Tensor:
        return bias

    def _said(self, linear: Any) -> dict[str, Any]:
        """Settings that have to be the same on all ranks."""
        if not isinstance(linear, nn.Linear):
            raise ArgumentError(f"{type(self).__name__} takes a torch.nn.Linear, got {type(linear).__name__}")
        part(linear.weight.shape[self.axis], self.comm, self.what)
        return {"shape": list(linear.weight.shape), "bias": linear.bias is not None, "sequence": self.sequence}


class ColumnParallel(_LinearPart):
    """Some of the outputs of `linear`: x goes in whole, or of `sequence` by rows.

    `comm`: a communicator, an axis of a `Mesh`, or a process group of hocket's.  Bytes: an allreduce of x's gradient in
    the backward pass; of `sequence` an allgather of x and a reduce-scatter of its gradient.
    """

    axis, what = 0, "out_features"

    def _bias(self, bias: Tensor, mine: slice) -> Tensor:
        return bias[mine]

    def forward(self, x: Tensor) -> Tensor:
        """(rows, ..., in_features) to (rows, ..., out_features / p)."""
        whole = functions.allgather(x, self.comm) if self.sequence else functions.shared(x, self.comm)
        return nn.functional.linear(whole, self.weight, self.bias)


class RowParallel(_LinearPart):
    """Some of the inputs of `linear`: `ColumnParallel`'s outputs go in, y comes out whole, or of `sequence` by rows.

    Bytes: an allreduce of y; of `sequence` a reduce-scatter of y and an allgather of its gradient.
    """

    axis, what = 1, "in_features"

    def forward(self, x: Tensor) -> Tensor:
        """(rows, ..., in_features / p) to (rows, ..., out_features)."""
        y = nn.functional.linear(x, self.weight)
        if not self.sequence:
            y = functions.summed(y, self.comm)
            return y if self.bias is None else y + self.bias
        y = functions.reduce_scatter(y, self.comm)
        return y if self.bias is None else y + functions.shared(self.bias, self.comm)
