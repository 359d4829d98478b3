"""Arrays in GPU memory, the plain way: through a copy in host memory.

CuPy arrays and torch CUDA tensors are accepted everywhere; each call copies in, runs, and copies the result back,
ordered by the array's current stream.  No GPU library is imported here: the array brings its own.
"""

from __future__ import annotations

import math
import os
import sys
from typing import Any

import numpy

from hocket.errors import ArgumentError

LEGACY = 1
"""The CUDA stream that every other one waits for (CU_STREAM_LEGACY)."""


DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/nvhost-gpu", "/dev/nvgpu")
"""Where there is an NVIDIA GPU, in a container too, one of these is: of Linux, of WSL, of the Jetsons."""


def may_have_gpu(setting: str) -> bool:
    """May this process have arrays on a GPU?  HOCKET_GPU; if that does not say it, whether a driver's device is there.

    Looks at no more, so that who has host arrays only does not load the driver.
    """
    return setting == "on" or (setting == "auto" and any(map(os.path.exists, DEVICES)))


def has_driver() -> bool:
    """Can this process use CUDA?"""
    from hocket.transports import cuda  # only who has arrays on a GPU needs it

    return cuda.library() is None


def place(array: Any, what: str) -> tuple[int, int, tuple[int, ...], bool]:
    """(GPU, address, shape, writable) of a contiguous array with `__cuda_array_interface__`; GPU -1: not known."""
    from hocket.transports import cuda

    interface = array.__cuda_array_interface__
    shape, strides, (address, read_only) = tuple(interface["shape"]), interface.get("strides"), interface["data"]
    if strides is not None and strides != _strides(shape, numpy.dtype(array.dtype).itemsize):
        raise ArgumentError(f"{what} is not C-contiguous (strides {strides}); pass a contiguous copy")
    if hasattr(array, "device"):
        gpu = array.device.id
    else:  # no elements have no address
        gpu = cuda.device_of(address) if address else cuda.current()
    return gpu, address, shape, not read_only


def _strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    return tuple(itemsize * math.prod(shape[i + 1 :]) for i in range(len(shape)))


def current_stream(array: Any, device: int) -> int:
    """The stream that the caller works on, on this GPU: CuPy's or torch's current one, or what the array says."""
    if hasattr(array, "data_ptr"):
        return int(sys.modules["torch"].cuda.current_stream(device).cuda_stream)
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        return int(cupy.cuda.get_current_stream(device).ptr)
    return int(array.__cuda_array_interface__.get("stream") or LEGACY)


def to_host(array: Any) -> Any:
    """A contiguous copy in host memory: NumPy for CuPy, a CPU tensor for torch."""
    return numpy.ascontiguousarray(array.get()) if hasattr(array, "get") else array.cpu()


def restore(array: Any, host: Any) -> None:
    """Write the host copy back."""
    if hasattr(array, "set"):
        array.set(host.reshape(array.shape))
    else:
        array.copy_(host)


def to_gpu(array: Any, host: Any) -> Any:
    """A copy of what is in host memory, as an array of the kind of `array`."""
    made = empty_like(array, host.shape)
    restore(made, host)
    return made


def empty_like(array: Any, shape: tuple[int, ...]) -> Any:
    """A new array of the same kind on the same device."""
    if hasattr(array, "new_empty"):
        return array.new_empty(shape)
    return sys.modules[type(array).__module__.partition(".")[0]].empty(shape, array.dtype)
