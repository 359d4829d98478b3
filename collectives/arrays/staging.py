"""Arrays in GPU memory: where they are, and how a call goes through host memory if it cannot go from GPU to GPU.

Such a call copies in, runs in host memory, and copies the result back, ordered by the array's current stream.  No GPU
library is imported here: the array brings its own.
"""

from __future__ import annotations

import math
import os
import sys
from typing import Any

import numpy

from hocket.collectives.arrays.places import HOST, gpu_of
from hocket.collectives.arrays.streams import current_stream
from hocket.errors import ArgumentError

DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/nvhost-gpu", "/dev/nvgpu")
"""One of these exists where there is an NVIDIA GPU, in a container too: on Linux, WSL or a Jetson."""


def may_have_gpu(setting: str) -> bool:
    """May this process have arrays on a GPU?  `setting` is HOCKET_GPU; "auto": if a driver's device is there.

    It does not load the driver, which a process with host arrays alone does not need.
    """
    return setting == "on" or (setting == "auto" and any(map(os.path.exists, DEVICES)))


def has_driver() -> bool:
    """Can this process use CUDA?"""
    from hocket.system.cuda import driver  # only a process with arrays on a GPU needs it

    return driver.library() is None


def read_cuda_interface(array: Any, what: str) -> tuple[int, int, tuple[int, ...], bool]:
    """(GPU, address, shape, writable) of a contiguous array with `__cuda_array_interface__`; GPU -1: not known."""
    interface = array.__cuda_array_interface__
    shape, strides, (address, read_only) = tuple(interface["shape"]), interface.get("strides"), interface["data"]
    if strides is not None and strides != _strides(shape, numpy.dtype(array.dtype).itemsize):
        raise ArgumentError(f"{what} is not C-contiguous (strides {strides}); pass a contiguous copy")
    return max(gpu_of(array), HOST), address, shape, not read_only


def _strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    return tuple(itemsize * math.prod(shape[i + 1 :]) for i in range(len(shape)))


def copies_itself(array: Any) -> bool:
    """Has this array methods that `to_host` and `restore` can use?"""
    return hasattr(array, "get") or hasattr(array, "cpu")


def to_host(array: Any) -> Any:
    """A contiguous copy in host memory: NumPy for CuPy, a CPU tensor for torch."""
    return numpy.ascontiguousarray(array.get()) if hasattr(array, "get") else array.cpu()


def restore(array: Any, host: Any) -> None:
    """Write the host copy back."""
    if hasattr(array, "set"):
        array.set(host.reshape(array.shape))
    else:
        array.copy_(host)


def copy(array: Any, gpu: int, to: int, source: int, nbytes: int) -> None:
    """Copy between host memory and this GPU's, in the order of the stream of `array`, and wait for it."""
    from hocket.system.cuda import driver

    if nbytes:
        device, stream = driver.device(gpu), current_stream(array, gpu)
        device.copy(to, source, nbytes, stream)
        device.synchronize(stream)


def to_gpu(array: Any, host: Any) -> Any:
    """A copy of `host`, as an array of the kind of `array` on its GPU."""
    result = empty_like(array, host.shape)
    restore(result, host)
    return result


def empty_like(array: Any, shape: tuple[int, ...]) -> Any:
    """A new array of the same kind on the same device."""
    if hasattr(array, "new_empty"):
        return array.new_empty(shape)
    library = sys.modules[type(array).__module__.partition(".")[0]]
    if not hasattr(library, "empty") or not hasattr(array, "dtype"):
        raise ArgumentError(f"hocket cannot make another {type(array).__name__} for the result: pass out=")
    return library.empty(shape, array.dtype)
