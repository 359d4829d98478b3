"""DTensors move to another mesh, of other ranks and with other placements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist

import hocket
from hocket.torch.errors import ArgumentError
from hocket.torch.group.carrier import carrier, comm_of

Description = list[Any]
"""A tensor as JSON: its shape, its stride, the ranks of its mesh with their shape, and its placements."""


def redistribute(
    state_dict: Mapping[str, Any], mesh: Any, placements: Any = None, *, group: Any = None, room: int = 64 << 20
) -> dict[str, Any]:
    """A state dict of DTensors as one of DTensors on `mesh`, a `DeviceMesh` that may have other ranks.

    `placements`: Shard and Replicate for each axis of `mesh`, the same for all tensors, or by name; None: those that
    each tensor has, if its mesh has as many axes, else Shard(0) along the first axis.  Plain tensors are taken from the
    lowest rank that has them, and come to every rank of `mesh` as they are.  A rank that is in no mesh of the state
    gives {}, and one that is not in `mesh` gets {}.  Nothing is gathered: each element goes from one rank that holds it
    to those that want it (`Communicator.redistribute`).  All ranks of `group` call it: of the backend "hocket"; None:
    torch's default group, or `hocket.init()`'s ranks where there is none.  Raises ArgumentError on all ranks.
    """
    of = group if group is not None else dist.group.WORLD if dist.is_initialized() else None
    comm = hocket.init() if of is None else comm_of(of)
    if comm is None:
        raise ArgumentError(f"redistribute needs a group of the backend 'hocket', and this is {carrier(of)}")
    told, why = {}, ""
    try:
        told = {name: _told(tensor) for name, tensor in state_dict.items()}
    except ArgumentError as error:
        why = str(error)
    rows = comm.share([why, told], "redistribute")
    if wrong := [f"rank {rank}: {each}" for rank, (each, _) in enumerate(rows) if each]:
        raise ArgumentError(f"redistribute: {wrong[0]}")
    known: dict[str, tuple[int, Description]] = {}
    for rank, (_, its) in reversed([*enumerate(rows)]):
        known.update({name: (rank, each) for name, each in its.items()})
    wanted = {name: _placements(name, each, mesh, placements) for name, (_, each) in known.items()}
    ranks = sorted(int(rank) for rank in mesh.mesh.flatten())
    source, target = {}, {}
    for name, (rank, (shape, _, members, by)) in known.items():
        whole = tuple(slice(0, n) for n in shape)
        if by is None:
            source[name] = hocket.Layout(shape, [[]] * rank + [[whole]])
            target[name] = hocket.Layout(shape, [[whole] if r in ranks else [] for r in range(comm.size)])
        else:
            source[name] = hocket.Layout.of_dtensor(_ForeignMesh(*members), _named(by), shape)
            target[name] = hocket.Layout.of_dtensor(mesh, wanted[name], shape)
    tree = {name: [_local(tensor)] for name, tensor in state_dict.items() if source[name].of(comm.rank)}
    made = comm.redistribute(tree, source, target, room=room)
    if comm.rank not in ranks:
        return {}
    return {name: _rebuilt(made[name][0], mesh, wanted[name], each) for name, (_, each) in known.items()}


class _ForeignMesh:
    """The ranks of a mesh that may not be this process's."""

    def __init__(self, ranks: Sequence[int], shape: Sequence[int]) -> None:
        import torch

        self.mesh = torch.tensor(ranks).reshape(*shape)


def _told(tensor: Any) -> Description:
    if not hasattr(tensor, "placements"):
        return [list(tensor.shape), list(tensor.stride()), None, None]
    by: list[int | list[int] | None] = []
    for placement in tensor.placements:
        if type(placement).__name__ not in ("Shard", "_StridedShard", "Replicate"):
            raise ArgumentError(f"a tensor is placed by {placement}: redistribute it to Shard or Replicate first")
        axis, before = getattr(placement, "dim", None), getattr(placement, "split_factor", None)
        by.append(axis if axis is None or before is None else [axis, before])
    ranks = tensor.device_mesh.mesh
    return [list(tensor.shape), list(tensor.stride()), [ranks.flatten().tolist(), list(ranks.shape)], by]


def _named(by: Sequence[int | list[int] | None], lengths: Sequence[int] | None = None) -> list[Any]:
    """Placements; what FSDP2 cuts behind tensor parallel layers is cut so by a mesh of other `lengths`, too."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    found: list[Any] = []
    for at, each in enumerate(by):
        if isinstance(each, list):
            axis, before = each
            if lengths is not None:
                before = math.prod(n for n, other in zip(lengths[at + 1 :], by[at + 1 :], strict=True) if other == axis)
            found.append(_StridedShard(axis, split_factor=before))
        else:
            found.append(Replicate() if each is None else Shard(each))
    return found


def _placements(name: str, told: Description, mesh: Any, placements: Any) -> list[Any]:
    by = placements.get(name) if isinstance(placements, Mapping) else placements
    axes = mesh.mesh.ndim
    if told[3] is None:
        return []
    if by is None:
        same = len(told[3]) == axes
        by = _named(told[3] if same or not told[0] else [0, *[None] * (axes - 1)], mesh.mesh.shape)
    if len(by) != axes:
        raise ArgumentError(f"redistribute: {name!r} has {len(by)} placements, and the mesh {axes} axes")
    return list(by)


def _local(tensor: Any) -> Any:
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.detach()


def _rebuilt(local: Any, mesh: Any, placements: Sequence[Any], told: Description) -> Any:
    if told[3] is None:
        return local
    import torch
    from torch.distributed.tensor import DTensor

    shape, stride = torch.Size(told[0]), tuple(told[1])
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=stride)
