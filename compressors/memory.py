"""The libraries that compute with vectors: NumPy in host memory, on a GPU the library that their arrays are of.

Methods and training are written once, on the functions that the libraries have in common.  None of them is imported
here: an array brings its own.  `fetched`, `saved` and `put` wait for a GPU where an array comes from there; nothing
else does: what is decided by values on a GPU is a number there, too.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.errors import ArgumentError, MemoryError
from hocket.extending import ELSEWHERE, gpu_of, on_host, place

Array = Any
"""NumPy's, or one of a library's on a GPU."""
_known: dict[type, Any] = {np.ndarray: np}
BYTES = {"bfloat16": 2}
"""Bytes of an element, by dtypes that NumPy has not."""


def is_array(x: Any) -> bool:
    """Is it NumPy's, or one on a GPU?"""
    return isinstance(x, np.ndarray) or gpu_of(x) >= 0


def dtype_of(x: Any) -> str:
    """NumPy's name of its dtype; "" if it has none."""
    return str(getattr(x, "dtype", "")).removeprefix("torch.")


def namespace(x: Array) -> Any:
    """The functions for arrays like x."""
    found = _known.get(type(x))
    if found is None:
        found = _known[type(x)] = np if isinstance(x, np.ndarray) else _namespace(x)
    return found


def _namespace(x: Array) -> Any:
    if hasattr(x, "__array_namespace__"):
        return x.__array_namespace__()
    library = sys.modules[type(x).__module__.partition(".")[0]]
    if not hasattr(library, "where"):
        raise ArgumentError(
            f"arrays on a GPU are computed with by their own library, and {type(x).__name__} has none: pass CuPy's or "
            "torch's"
        )
    return library


def size(x: Array) -> int:
    """Elements."""
    return math.prod(x.shape)


def empty(like: Array, shape: Any, kind: str = "float32") -> Array:
    """Memory where `like` lies.  MemoryError, before anything has changed, with the bytes that are wanted."""
    xp = namespace(like)
    dtype = getattr(xp, kind, kind)
    try:
        if hasattr(like, "new_empty"):
            return like.new_empty(shape, dtype=dtype)
        with contextlib.nullcontext() if xp is np else like.device:
            return xp.empty(shape, dtype)
    except Exception as why:  # CuPy's and torch's own classes
        if "emory" not in type(why).__name__:
            raise
        wanted = math.prod((shape,) if isinstance(shape, int) else shape) * (BYTES.get(kind) or np.dtype(kind).itemsize)
        raise MemoryError(
            f"no room for {wanted} bytes {place(like)}, which a method keeps or computes in ({why})"
        ) from None


def alike(x: Array, shape: Any) -> Array:
    """Memory of the dtype of x where that lies."""
    return np.empty(shape, x.dtype) if isinstance(x, np.ndarray) else empty(x, shape, dtype_of(x))


def zeros(like: Array, shape: Any, kind: str = "float32") -> Array:
    made = empty(like, shape, kind)
    made[...] = 0
    return made


def taken(x: Any) -> Array:
    """The caller's memory as an array: float32, contiguous and writable, or ArgumentError."""
    tensor, gpu = hasattr(x, "detach"), gpu_of(x)
    if gpu == ELSEWHERE or (gpu < 0 and not tensor and not isinstance(x, np.ndarray)):
        got = f"one {place(x)}" if tensor else type(x).__name__
        raise ArgumentError(
            f"a Compressor takes NumPy arrays, torch tensors on the CPU or a GPU, and CuPy arrays, got {got}"
        )
    got = f"{x.dtype}{tuple(x.shape)}"
    single = dtype_of(x) == "float32"
    if tensor and not (single and str(x.layout) == "torch.strided"):  # some of them NumPy does not know
        got += f", {x.layout}"
    elif single:
        array = x if not tensor else x.detach() if gpu >= 0 else x.detach().numpy()
        flags = None if tensor and gpu >= 0 else array.flags
        namespace(array)
        if array.is_contiguous() if flags is None else flags.c_contiguous and getattr(flags, "writeable", True):
            return array
    raise ArgumentError(f"a Compressor takes contiguous, writable float32 arrays, got {got}")


def all_taken(xs: Sequence[Any]) -> list[Array]:
    """The same of several, which lie in one place."""
    arrays = [taken(x) for x in xs]
    places = list(dict.fromkeys(map(place, arrays)))
    if len(places) > 1:
        raise ArgumentError(f"vectors of one call must lie in one place; these lie {' and '.join(places)}")
    return arrays


def hosted(x: Any, what: str) -> None:
    """Raise ArgumentError for an array on a GPU."""
    if not on_host(x):
        raise ArgumentError(f"{what} must be in host memory: it is {place(x)}; pass a copy")


def copied(x: Array) -> Array:
    made = alike(x, x.shape)
    made[...] = x
    return made


def moved(x: np.ndarray[Any, Any], like: Array) -> Array:
    """x where `like` lies.  A copy to a GPU begins behind what the stream has, and is not waited for."""
    if on_host(like):
        return x
    if hasattr(like, "new_empty"):  # torch waits for copies from memory that is not pinned
        return namespace(like).from_numpy(x).pin_memory().to(like.device, non_blocking=True)
    with like.device:
        return namespace(like).asarray(x)


def filled(into: Array, x: np.ndarray[Any, Any]) -> None:
    """Begin to copy x, which is in pinned host memory, to a GPU, in the order of the current stream."""
    if hasattr(into, "copy_"):
        into.copy_(namespace(into).from_numpy(x), non_blocking=True)
    else:
        into.set(x)


def fetched(x: Array) -> np.ndarray[Any, Any]:
    """x as NumPy's, which waits for a GPU."""
    if isinstance(x, np.ndarray):
        return x
    return np.asarray(x.get() if hasattr(x, "get") else x.detach().cpu().numpy())


def saved(x: Array) -> np.ndarray[Any, Any]:
    """A copy in host memory, for a checkpoint."""
    return fetched(x).copy() if on_host(x) else fetched(x)


def put(into: Array, part: Any) -> None:
    """Copy an array or a number, also from one library or place to another."""
    if isinstance(part, np.ndarray) and not isinstance(into, np.ndarray):
        part = into.new_tensor(part) if on_host(into) else moved(part, into)
    elif isinstance(into, np.ndarray) and not on_host(part):
        part = fetched(part)
    into[...] = part


def contiguous(x: Array) -> Array:
    """x, or a contiguous copy of it."""
    return x.contiguous() if hasattr(x, "contiguous") else namespace(x).ascontiguousarray(x)


def numbered(like: Array, count: int) -> Array:
    """The whole numbers from 0, int64, where `like` lies."""
    if on_host(like):
        return np.arange(count)
    ones = empty(like, count, "int64")
    ones[...] = 1
    return namespace(like).cumsum(ones, 0) - 1


def order(x: Array) -> Array:
    """Indices that sort the last axis; equal ones keep their order."""
    xp = namespace(x)
    return xp.argsort(x, dim=-1, stable=True) if hasattr(x, "new_empty") else xp.argsort(x, -1, kind="stable")


def finite(x: Array) -> Any:
    """Are all of its elements?  A bool; of an array on a GPU one there."""
    there = namespace(x).isfinite(x).all()
    return bool(there) if on_host(x) else there


def cast(x: Array, kind: str) -> Array:
    """The same numbers in another dtype; x itself, if it has that."""
    dtype = getattr(namespace(x), kind, kind)
    return x.astype(dtype, copy=False) if hasattr(x, "astype") else x.to(dtype)


def chosen(counts: Any, new: Array, old: Any) -> Array:
    """`new` where a call counts, else `old`; `counts` may be known on the GPU alone."""
    return namespace(new).where(counts, new, old)


def squared(x: Array) -> Any:
    """The square of its length; not finite if an element is not.  A number; on a GPU, one there."""
    flat, xp = x.reshape(-1), namespace(x)
    if xp is not np:
        return (cast(flat, "float64") ** 2).sum()
    with np.errstate(over="ignore", invalid="ignore"):
        square = float(np.dot(flat, flat))
    return square if np.isfinite(square) or not np.isfinite(flat).all() else float(np.dot(flat, flat.astype(float)))
