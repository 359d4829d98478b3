"""A module's parameters as outer loops take them, and the communicator of a process group."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from hocket.arguments import kind
from hocket.errors import ArgumentError
from hocket.torch.group.carrier import comm_of
from hocket.training import Flat


class Parameters(Flat):
    """Tensors by name: of any floating dtype, on any device; of a DTensor this rank's part.

    They are changed in place, and an optimizer keeps what it knows of them.  Vectors of them lie where `Flat` says.
    """

    def taken(self, name: str, array: Any) -> torch.Tensor:
        if not isinstance(array, torch.Tensor) or not array.is_floating_point():
            got = f"{array.dtype}{tuple(array.shape)}" if isinstance(array, torch.Tensor) else kind(array)
            raise ArgumentError(f"parameter {name!r} must be a tensor of floats; got {got}")
        with torch.no_grad():
            return _own(array)

    def widest(self) -> np.dtype[Any]:
        doubles = [name for name, each in self.arrays.items() if each.dtype == torch.float64]
        if doubles and len(doubles) < len(self.arrays):
            other = next(name for name in self.arrays if name not in doubles)
            raise ArgumentError(f"parameter {doubles[0]!r} is float64 and {other!r} is not: give all in one dtype")
        return np.dtype(np.float64 if doubles else np.float32)

    @torch.no_grad()
    def read(self, names: Sequence[str], out: Any, arrays: Mapping[str, Any] | None = None) -> None:
        source = self.arrays if arrays is None else arrays
        for name, part in zip(names, self.parts(names, out), strict=True):
            _seen(part).copy_(source[name])

    @torch.no_grad()
    def write(self, names: Sequence[str], vector: Any) -> None:
        for name, part in zip(names, self.parts(names, vector), strict=True):
            self.arrays[name].copy_(_seen(part))

    def piece(self, name: str, first: int, count: int) -> Any:
        part = self.arrays[name].reshape(-1)[first : first + count]
        return part.to("cpu", self._kind).numpy() if self.like is None else part.to(self._kind)

    def exact(self) -> bool:
        return all(each.dtype == self._kind for each in self.arrays.values())

    def rounded(self, name: str, part: Any) -> Any:
        made = _seen(part).to(self.arrays[name].dtype).to(self._kind)
        return made.numpy() if self.like is None else made

    @property
    def _kind(self) -> torch.dtype:
        return torch.float64 if self.dtype == np.float64 else torch.float32


def _seen(vector: Any) -> Any:
    """A vector as a tensor, of the same memory."""
    return torch.from_numpy(vector) if isinstance(vector, np.ndarray) else vector


def _is_cut(tensor: torch.Tensor) -> bool:
    """Is it a DTensor?  Where nobody has imported torch's module of them, which takes a second, there is none."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _own(tensor: Any) -> torch.Tensor:
    """This rank's part."""
    part: torch.Tensor = tensor.to_local() if _is_cut(tensor) else tensor.detach()
    return part


class _Trained(Mapping[str, torch.Tensor]):
    """The parameters of a module that are trained, as they are now: others may have been put in their places.

    It has those that were trained at first, and those that are trained now: thawed ones, and layers that were added.
    Those of FSDP2, which puts whole ones there while it computes, are as they were.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._first = self._now()
        self._cut = any(map(_is_cut, self._first.values()))

    def _now(self) -> dict[str, torch.Tensor]:
        return {name: each for name, each in self._module.named_parameters() if each.requires_grad}

    def __getitem__(self, name: str) -> torch.Tensor:
        if self._cut and name in self._first:
            return self._first[name]
        try:
            return self._module.get_parameter(name)
        except AttributeError:  # it was taken out
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter({**self._first, **self._now()})

    def __len__(self) -> int:
        return sum(1 for _ in self)


def parameters(module: torch.nn.Module, keep: str = "gpu") -> Parameters:
    """The module's parameters that are trained, for `hocket.training.DiLoCo` and its kin, and for `Sharded`.

    `keep="host"`: what these keep of a module on a GPU lies in host memory, and each round copies there and back.

    Take them once, when the module is where it will be trained: after `.to(device)` and `fully_shard`.  In a module of
    FSDP2 they are this rank's shards, so the loop's communicator is that of the ranks with the same shard.  Buffers, as
    BatchNorm's averages, are left to each rank.
    """
    inside = module.module if isinstance(module, DistributedDataParallel) else module
    return Parameters(_Trained(inside), keep)


def communicator(group: Any = None) -> Any:
    """hocket's communicator of a process group of backend "hocket"; of the default group.

    Its calls are ordered with the group's own.  ArgumentError: the group is another backend's.
    """
    made = comm_of(torch.distributed.group.WORLD if group is None else group)
    if made is None:
        raise ArgumentError('the group is not hocket\'s: init_process_group("hocket"), or hocket.init() beside it')
    return made
