"""Arrays in GPU memory, the plain way: through a copy in host memory.

CuPy arrays and torch CUDA tensors are accepted everywhere; each call copies in, runs, and copies the result back,
ordered by the array's current stream.  No GPU library is imported here: the array brings its own.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy


def to_host(array: Any) -> Any:
    """A contiguous copy in host memory: NumPy for CuPy, a CPU tensor for torch."""
    return numpy.ascontiguousarray(array.get()) if hasattr(array, "get") else array.cpu()


def restore(array: Any, host: Any) -> None:
    """Write the host copy back."""
    if hasattr(array, "set"):
        array.set(host.reshape(array.shape))
    else:
        array.copy_(host)


def empty_like(array: Any, shape: tuple[int, ...]) -> Any:
    """A new array of the same kind on the same device."""
    if hasattr(array, "new_empty"):
        return array.new_empty(shape)
    return sys.modules[type(array).__module__.partition(".")[0]].empty(shape, array.dtype)
