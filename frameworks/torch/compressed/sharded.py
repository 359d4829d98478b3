"""FSDP2 with fewer bits: its reduce-scatter and all-gather by a `Compressor`; and ranks' own states in checkpoints."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from hocket.compression import Compressor
from hocket.errors import ArgumentError
from hocket.torch.compressed.rates import Rates
from hocket.torch.compressed.states import with_arrays, with_tensors
from hocket.training import Outer

OPS = {"RedOpType.AVG": "avg", "RedOpType.SUM": "sum"}


def shard_comm(module: Any) -> Any:
    """The group over which the parameters are sharded: that of their mesh, or of its last dimension of two (HSDP)."""
    parameter = next((p for p in module.parameters() if isinstance(p, DTensor)), None)
    if parameter is None:
        return None
    mesh, placements = parameter.device_mesh, parameter.placements
    if mesh.device_type not in ("cpu", "cuda"):
        raise ArgumentError(f"compress takes sharded modules on CPUs and GPUs; their mesh is of {mesh.device_type!r}")
    if sum(isinstance(placement, Shard) for placement in placements) != 1 or not isinstance(placements[-1], Shard):
        raise ArgumentError(f"compress takes modules that are sharded once, by fully_shard alone; got {placements}")
    return mesh.get_group(mesh.ndim - 1)


def use(module: Any, compressor: Compressor, gather: bool, rates: Rates) -> None:
    """Make all of its FSDP modules average, and if wished gather, by the compressor."""
    for name, part in module.named_modules():
        if isinstance(part, FSDPModule):
            part.set_custom_reduce_scatter(_ReduceScatter(compressor, f"{name}.gradients", rates))  # type: ignore[arg-type]
            if gather:
                part.set_custom_all_gather(_AllGather(compressor, f"{name}.parameters"))  # type: ignore[arg-type]


class _Of:
    """One module's."""

    def __init__(self, compressor: Compressor, key: str) -> None:
        self.compressor, self.key = compressor, key

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _ReduceScatter(_Of):
    def __init__(self, compressor: Compressor, key: str, rates: Rates) -> None:
        super().__init__(compressor, key)
        self.rates = rates

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        if str(op) not in OPS:
            raise ArgumentError(f"compressed gradients are averaged or added, not {op}: set no gradient divide factor")
        rows = input_tensor.view(-1, *output_tensor.shape)
        self.compressor.reduce_scatter(rows, self.key, output_tensor, OPS[str(op)], self.rates.one())


class _AllGather(_Of):
    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
    ) -> None:
        self.compressor.allgather(input_tensor, self.key, output_tensor.view(-1, *input_tensor.shape))


class Checkpointed(Stateful):
    """The parts that each rank keeps for itself, for torch.distributed.checkpoint: `dcp.save({..., "owed":
    Checkpointed(c)})`.

    `kept`: a `Compressor`, or an outer loop of `hocket.training`.  Each rank saves and loads its own, so the job
    must be of the same size; one of another size takes the `state_dict()`s of all ranks (`load_state_dict` of either).
    """

    def __init__(self, kept: Compressor | Outer) -> None:
        self.kept = kept

    def state_dict(self) -> dict[str, Any]:
        kept = io.BytesIO()
        torch.save(with_tensors(self.kept.state_dict()), kept)
        kept.seek(0)
        return {f"rank {torch.distributed.get_rank()} of {torch.distributed.get_world_size()}": kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for kept in state_dict.values():
            kept.seek(0)
            try:
                state = torch.load(kept, weights_only=True)  # what a checkpoint holds is not run
            except pickle.UnpicklingError as why:
                raise ArgumentError(f"the state holds more than arrays and numbers: {why}") from None
            self.kept.load_state_dict(with_arrays(state))
