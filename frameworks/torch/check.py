"""Do all ranks hold the same model?"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

import hocket
from hocket.torch.errors import ArgumentError
from hocket.torch.group.carrier import carrier, comm_of


def check(module: Any, group: Any = None) -> dict[str, list[tuple[int, ...]]]:
    """The parameters and buffers of which ranks hold other bits, by name, with the ranks that hold the same.

    `module`: on the CPU or a GPU, also a DistributedDataParallel.  `group`: of the backend "hocket"; None: torch's
    default group, or `hocket.init()`'s ranks where there is none.
    {}: all are equal, as they are after DDP's first broadcast and after each step.  All ranks of the group call it.
    Cost: one pass over the model; digests alone travel (`Communicator.check_equal`).
    """
    of = group if group is not None else dist.group.WORLD if dist.is_initialized() else None
    comm = hocket.init() if of is None else comm_of(of)
    if comm is None:
        raise ArgumentError(f"check needs a group of the backend 'hocket', and this is {carrier(of)}")
    whole = getattr(module, "module", module)
    named = {**dict(whole.named_parameters()), **dict(whole.named_buffers())}
    found: dict[str, list[tuple[int, ...]]] = comm.check_equal({name: each.detach() for name, each in named.items()})
    return {name[3:-2]: groups for name, groups in found.items()}  # x['name']
