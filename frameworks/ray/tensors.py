"""Arrays as Ray's callers have them: NumPy, torch or CuPy, several kinds in one call, and read-only ones.

Ray hands actors' arguments over as read-only arrays that lie in its object store, and its own groups write into them
all the same, so this does too.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.ray.errors import ArgumentError


def _is_torch(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def dtype(x: Any) -> str:
    """The element's type, by the name that it has in all three libraries."""
    return str(x.dtype).removeprefix("torch.")


def readable(x: Any) -> Any:
    return x.detach() if _is_torch(x) else x


def writable(x: Any) -> Any:
    """The same memory; of a read-only NumPy array too."""
    if not isinstance(x, np.ndarray) or x.flags.writeable:
        return readable(x)
    if not x.flags.c_contiguous:
        raise ArgumentError("the array is read-only and not contiguous; pass a copy of it")
    if not x.size:
        return x.copy()
    memory: Any = (ctypes.c_char * x.nbytes).from_address(x.ctypes.data)
    return np.frombuffer(memory, x.dtype).reshape(x.shape)


def flat(x: Any) -> Any:
    """The elements of x in one row: the same memory if it is contiguous, else a copy."""
    return readable(x).reshape(-1)


def alike(tensors: Sequence[Any], x: Any, what: str) -> None:
    """ArgumentError unless all have the shape and dtype of `x`."""
    for i, each in enumerate(tensors):
        if tuple(each.shape) != tuple(x.shape) or dtype(each) != dtype(x):
            raise ArgumentError(
                f"{what}: the list's tensor {i} is {dtype(each)}{list(each.shape)} and the tensor is "
                f"{dtype(x)}{list(x.shape)}; all must be alike"
            )


def joined(tensors: Sequence[Any], x: Any) -> Any:
    """All their elements in one new row, of the library that `x` is of."""
    if _is_torch(x):
        return sys.modules["torch"].concatenate([flat(_as_torch(each)) for each in tensors])
    if isinstance(x, np.ndarray):
        return np.concatenate([flat(_as_numpy(each)) for each in tensors])
    return sys.modules["cupy"].concatenate([flat(each) for each in tensors])


def dealt(row: Any, tensors: Sequence[Any]) -> None:
    """Copy equal parts of `row` into the tensors."""
    n = len(row) // len(tensors)
    for i, each in enumerate(tensors):
        part = row[i * n : (i + 1) * n]
        if _is_torch(each):
            readable(each)[...] = _as_torch(part).reshape(each.shape)
        else:
            writable(each)[...] = _as_numpy(part).reshape(each.shape)


def _as_torch(x: Any) -> Any:
    return x if _is_torch(x) else sys.modules["torch"].from_numpy(writable(x))


def _as_numpy(x: Any) -> Any:
    """CuPy arrays stay such."""
    return readable(x).numpy() if _is_torch(x) else x
