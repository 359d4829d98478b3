"""Batch normalization by the statistics of all ranks' batches."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from hocket.horovod.basics import Sum, size
from hocket.horovod.torch.autograd import allreduce

Tensor = torch.Tensor


class SyncBatchNorm(_BatchNorm):
    """A torch.nn.BatchNorm1d to 3d with mean and variance over the batches of all ranks, which may differ in length.

    On CPUs and GPUs.  In evaluation, and where there is one rank, it is batch normalization.  Cost: two allreduces of
    C numbers, and two more in backward.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm takes 2 dimensions or more, (N, C, ...); got {input.dim()}")

    def forward(self, input: Tensor) -> Tensor:
        """Normalize (N, C, ...)."""
        self._check_input_dim(input)
        if size() == 1 or not (self.training or self.running_mean is None):
            return super().forward(input)
        over = [0, *range(2, input.dim())]
        shape = [1, -1] + [1] * (input.dim() - 2)
        x = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        here = x.new_tensor([x.numel() / x.shape[1]])
        sums = allreduce(torch.cat([x.sum(over), here]), op=Sum)
        count = sums[-1].detach()
        mean = sums[:-1] / count
        away = x - mean.view(shape)
        squares = allreduce(away.square().sum(over), op=Sum)
        if self.training and self.running_mean is not None:
            self._remember(mean.detach(), squares.detach() / (count - 1).clamp(min=1))
        made = away * torch.rsqrt(squares / count + self.eps).view(shape)
        if self.weight is not None:
            made = made * self.weight.view(shape) + self.bias.view(shape)
        return made.to(input.dtype)

    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        """Into the running statistics."""
        seen: Any = self.num_batches_tracked
        seen += 1
        share = 1 / int(seen) if self.momentum is None else self.momentum
        assert self.running_mean is not None and self.running_var is not None
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share)
