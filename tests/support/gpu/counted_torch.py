"""torch's tensors on the stand-in's GPU: torch computes on the CPU, in the order of the current stream.

What waits for the GPU on a card, and what leaves it, goes through the driver, which counts both; tensors of the CPU
among these are refused, as torch does.
"""

from __future__ import annotations

import functools
from collections import deque
from typing import Any

import numpy as np
import torch

from hocket.system.cuda import driver
from support.gpu import counted, tensors

CUDA = torch.device("cuda", 0)
WAITS = {"item", "__bool__", "__float__", "__int__", "__index__", "tolist", "nonzero", "masked_select", "unique"}
TO_HOST = {"cpu", "numpy"}
FROM_HOST = {"copy_", "__setitem__", "to"}


class Tensor(torch.Tensor):
    is_cuda, is_cpu = True, False  # type: ignore[assignment]
    device = CUDA

    def get_device(self) -> int:  # type: ignore[override]
        return 0

    def data_ptr(self) -> int:
        alias = seen(torch.Tensor.data_ptr, self)
        memory = counted.memory_at(alias)
        return 0 if memory is None else int(alias - memory.alias + memory.address)

    def record_stream(self, to: Any) -> None:  # type: ignore[override]
        """Memory comes back in the order of one stream here: tests have one at a time."""

    def new_empty(self, *shape: Any, dtype: Any = None) -> Tensor:  # type: ignore[override]
        size = torch.Size(shape[0]) if not isinstance(shape[0], int) else torch.Size(shape)
        return on_gpu(seen(torch.empty, size, dtype=dtype or self.dtype))

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return call(function, args, kwargs or {})


Tensor.__module__ = "torch"  # where hocket looks for functions


def seen(function: Any, *args: Any, **how: Any) -> Any:
    """The function of plain tensors."""
    with torch._C.DisableTorchFunction():
        return function(*args, **how)


def on_gpu(tensor: torch.Tensor) -> Tensor:
    """A copy."""
    memory = counted.Memory(seen(tensor.numel) * tensor.element_size())
    there = seen(torch.frombuffer, memory.seen, dtype=torch.uint8)[: seen(tensor.numel) * tensor.element_size()]
    there = there.view(tensor.dtype).view(tensor.shape)
    there.copy_(tensor)
    return there.as_subclass(Tensor)


COPIED: deque[torch.Tensor] = deque(maxlen=256)
"""Pinned memory that may still be copied from: torch gives none away before its copies are done."""


def leave(nbytes: int) -> None:
    """Bytes go to the host, which waits for them."""
    host, there = np.empty(nbytes, np.uint8), counted.Memory(nbytes)
    with driver.device(0) as device:
        device.copy(host.ctypes.data, there.address, nbytes, counted.current())
        device.synchronize(counted.current())


def call(function: Any, args: Any, how: Any) -> Any:
    name = getattr(function, "__name__", "")
    everything = [*flattened(args), *flattened(tuple(how.values()))]
    here = [each for each in everything if isinstance(each, torch.Tensor) and not isinstance(each, Tensor)]
    own = [each for each in everything if isinstance(each, Tensor)]
    target = [str(each) for each in everything if isinstance(each, torch.device | str)] if name == "to" else []
    to_host = name in TO_HOST or "cpu" in target
    if own and here and name not in FROM_HOST and any(each.dim() for each in here):
        raise RuntimeError("Expected all tensors to be on the same device, but found cuda:0 and cpu!")
    masks = name == "__getitem__" and any(each.dtype == torch.bool for each in own[1:])
    waits = name in WAITS or masks or (here and own and not how.get("non_blocking"))
    if name == "to" and not own and not how.get("non_blocking"):
        waits = True
    if to_host or waits:
        leave(own[0].numel() * own[0].element_size() if to_host and own else 1)
    if name == "copy_" and own and here and args[0] is own[0] and how.get("non_blocking"):
        nbytes = own[0].numel() * own[0].element_size()
        with driver.device(0) as device:  # in stream order, and not waited for
            device.copy(own[0].data_ptr(), here[0].data_ptr(), nbytes, counted.current())
        if getattr(here[0], "pinned_by_torch", False):
            COPIED.append(here[0])
        return own[0]
    counted.settle()
    plain = {each: value for each, value in how.items() if not (each == "device" and "cuda" in str(value))}
    if any("cuda" in each for each in target):
        return args[0] if own else on_gpu(args[0])
    result = seen(function, *args, **plain)
    if name == "cpu":
        return seen(torch.Tensor.clone, result.as_subclass(torch.Tensor))
    return result if to_host else wrapped(result)


def flattened(values: Any) -> list[Any]:
    found = []
    for each in values:
        if isinstance(each, list | tuple):
            found += flattened(each)
        else:
            found.append(each)
    return found


def wrapped(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(wrapped, value))
    if not isinstance(value, torch.Tensor) or isinstance(value, Tensor):
        return value
    if counted.memory_at(seen(value.data_ptr)) is not None:
        return value.as_subclass(Tensor)
    return on_gpu(value)


def to(tensor: torch.Tensor, *where: Any, **how: Any) -> Any:
    """torch.Tensor.to, for tensors of the CPU."""
    if any("cuda" in str(each) for each in where):
        return call(torch._C.TensorBase.to, (tensor, *where), how)
    return torch._C.TensorBase.to(tensor, *where, **how)


def pinned(empty: Any, *shape: Any, pin_memory: bool = False, **how: Any) -> torch.Tensor:
    """torch.empty, where no memory can be pinned: it is marked."""
    made: Any = empty(*shape, **how)
    made.pinned_by_torch = pin_memory
    return made  # type: ignore[no-any-return]


class Stream(tensors.Stream):
    """torch.cuda.Stream: a new one."""

    def __init__(self, device: Any = None) -> None:
        super().__init__(driver.device(0).take_stream())

    def synchronize(self) -> None:
        driver.device(0).synchronize(self.cuda_stream)

    def __del__(self) -> None:
        driver.device(0).give_stream(self.cuda_stream)


def install() -> None:
    """Let hocket find these in the place of torch's."""
    tensors.install()
    module: Any = torch
    module.cuda.Stream, module.futures.Future = Stream, tensors.Future
    module.Tensor.pin_memory, module.Tensor.to = lambda tensor: tensor, to
    module.empty = functools.partial(pinned, torch.empty)
    own: Any = counted
    own.current = lambda: tensors.current_stream().cuda_stream


def place(host: Any) -> Tensor:
    return on_gpu(torch.from_numpy(host))


def read(tensor: Any) -> Any:
    return tensor.cpu().numpy()
