"""Tensors in memory that all ranks of this host read and write: `hocket.torch.empty`, and what torch asks a group for.

FSDP2 asks for the buffers of its communication, after `model.set_allocate_memory_from_process_group_for_comm(True)`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy
import torch

import hocket
from hocket import Communicator
from hocket.arguments import wholes
from hocket.errors import ArgumentError
from hocket.torch.errors import in_torchs_words


def empty(*size: Any, dtype: torch.dtype | None = None, group: Any = None) -> torch.Tensor:
    """Make a tensor whose memory the other ranks of this host read and write, as `torch.empty` makes one.

    Its calls copy once, where others copy twice or ask the system.  `dtype`: default torch's.  `group`: of hocket's;
    default the default group.  Short ones, below 64 KiB, and those for which there is no shared memory are ordinary.
    The memory of those that were dropped is used again, warm, up to 256 MiB.  Raises ArgumentError.

    >>> with hocket.init() as comm:
    ...     empty(2, 3, group=comm).shape
    torch.Size([2, 3])
    """
    shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    lengths = tuple(wholes(shape, "size"))
    if any(n < 0 for n in lengths):
        raise ArgumentError(f"size={lengths!r} must not have a negative length")
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise ArgumentError(f"dtype={dtype!r} is not a dtype of torch's")
    from hocket.torch.training.parameters import communicator  # imports much

    comm = group if isinstance(group, Communicator) else communicator(group)
    return allocated(comm, math.prod(lengths), dtype or torch.get_default_dtype()).view(lengths)


def allocated(comm: Communicator, count: int, dtype: torch.dtype) -> torch.Tensor:
    """A flat tensor of so many elements."""
    with hocket.shared_arrays(comm=comm):
        array = numpy.empty(count * dtype.itemsize, numpy.uint8)
    return torch.from_numpy(array).view(dtype) if count else torch.empty(0, dtype=dtype)


class Allocating:
    """A group's memory, as torch asks a backend for it."""

    comm: Communicator

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """In host memory."""
        return torch.device(device).type == "cpu"

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A flat tensor of `size` elements."""
        if not self.supports_tensor_alloc(device):
            raise ArgumentError(f"allocate_tensor gives host memory, and {device} was asked for")
        with in_torchs_words():
            return allocated(self.comm, size, dtype)
