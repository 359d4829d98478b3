"""The one functional collective that torch's C++ code does not hand on to a group made in Python.

`_c10d_functional.all_gather_into_tensor_out` (which Inductor and FSDP's compiler passes emit) asks the group for a
compiled backend.  It is given another implementation for CPU tensors, which works for every group.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._C._distributed_c10d import _register_work, _resolve_process_group

_kept: list[Any] = []  # an override lasts as long as its library


def complete() -> None:
    """Put it in place, once."""
    if not _kept:
        make: Any = torch.library.Library
        library = make("_c10d_functional", "IMPL")
        library.impl("all_gather_into_tensor_out", all_gather_into_tensor_out, "CPU")
        _kept.append(library)


def all_gather_into_tensor_out(given: torch.Tensor, size: int, name: Any, *, out: torch.Tensor) -> torch.Tensor:
    group = name if isinstance(name, torch.distributed.ProcessGroup) else _resolve_process_group(name)
    gather: Any = getattr(group, "all_gather_single", None) or group._allgather_base
    _register_work(out, gather(out, given))
    return out
