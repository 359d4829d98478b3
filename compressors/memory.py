"""Where vectors lie, and who computes with them: NumPy in host memory, on a GPU the library that their arrays are of.

Methods are written once, on the functions that the libraries have in common.  None of them is imported here: an array
brings its own.  Nothing here waits for a GPU: what is decided by values there is a number there, too.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.errors import ArgumentError, MemoryError

Array = Any
"""NumPy's, or one of a library's on a GPU."""
_known: dict[type, Any] = {np.ndarray: np}


def on_host(x: Array) -> bool:
    return isinstance(x, np.ndarray)


def namespace(x: Array) -> Any:
    """The functions for arrays like x."""
    found = _known.get(type(x))
    if found is None:
        found = _known[type(x)] = np if on_host(x) else _namespace(x)
    return found


def _namespace(x: Array) -> Any:
    if hasattr(x, "__array_namespace__"):
        return x.__array_namespace__()
    library = sys.modules[type(x).__module__.partition(".")[0]]
    if not hasattr(library, "where"):
        raise ArgumentError(
            f"a Compressor computes on a GPU with the library of the arrays, and {type(x).__name__} has none: pass "
            "CuPy's or torch's"
        )
    return library


def size(x: Array) -> int:
    """Elements."""
    return math.prod(x.shape)


def empty(like: Array, shape: Any, kind: str = "float32") -> Array:
    """Memory where `like` lies.  MemoryError, before anything has changed, with the bytes that are wanted."""
    xp = namespace(like)
    dtype = getattr(xp, kind)
    try:
        if hasattr(like, "new_empty"):
            return like.new_empty(shape, dtype=dtype)
        with contextlib.nullcontext() if xp is np else like.device:
            return xp.empty(shape, dtype)
    except Exception as why:  # CuPy's and torch's own classes
        if "emory" not in type(why).__name__:
            raise
        count = shape if isinstance(shape, int) else math.prod(shape)
        wanted = 4 * count
        place = "in host memory" if xp is np else f"on {like.device}"
        raise MemoryError(f"no room for {wanted} bytes {place}, which a method keeps or computes in ({why})") from None


def zeros(like: Array, shape: Any) -> Array:
    made = empty(like, shape)
    made[...] = 0
    return made


def taken(x: Any) -> Array:
    """The caller's memory as an array: float32, contiguous and writable, or ArgumentError."""
    place = x.device.type if hasattr(x, "detach") else ""
    known = on_host(x) or place in ("cpu", "cuda") or (not place and hasattr(x, "__cuda_array_interface__"))
    if not known:
        got = f"one on {x.device}" if place else type(x).__name__
        raise ArgumentError(
            f"a Compressor takes NumPy arrays, torch tensors on the CPU or a GPU, and CuPy arrays, got {got}"
        )
    got = f"{x.dtype}{tuple(x.shape)}"
    single = str(x.dtype).removeprefix("torch.") == "float32"
    if place and not (single and str(x.layout) == "torch.strided"):  # some of them NumPy does not know
        got += f", {x.layout}"
    elif single:
        array = x if not place else x.detach() if place == "cuda" else x.detach().numpy()
        flags = None if place == "cuda" else array.flags
        namespace(array)
        if array.is_contiguous() if flags is None else flags.c_contiguous and getattr(flags, "writeable", True):
            return array
    raise ArgumentError(f"a Compressor takes contiguous, writable float32 arrays, got {got}")


def all_taken(xs: Sequence[Any]) -> list[Array]:
    """The same of several, which lie in one place."""
    arrays = [taken(x) for x in xs]
    places = list(dict.fromkeys(map(described, arrays)))
    if len(places) > 1:
        raise ArgumentError(f"vectors of one call must lie in one place; these lie {' and '.join(places)}")
    return arrays


def copied(x: Array) -> Array:
    return x.copy() if hasattr(x, "copy") else x.clone()


def moved(x: np.ndarray[Any, Any], like: Array) -> Array:
    """x where `like` lies.  A copy to a GPU begins behind what the stream has, and is not waited for."""
    if on_host(like):
        return x
    if hasattr(like, "new_empty"):  # torch waits for copies from memory that is not pinned
        return namespace(like).from_numpy(x).pin_memory().to(like.device, non_blocking=True)
    with like.device:
        return namespace(like).asarray(x)


def fetched(x: Array) -> np.ndarray[Any, Any]:
    """x as NumPy's, which waits for a GPU."""
    if on_host(x):
        return x  # type: ignore[no-any-return]
    return np.asarray(x.get() if hasattr(x, "get") else x.detach().cpu().numpy())


def finite(x: Array) -> Any:
    """Are all of its elements?  A bool; of an array on a GPU one there."""
    there = namespace(x).isfinite(x).all()
    return bool(there) if on_host(x) else there


def cast(x: Array, kind: str) -> Array:
    """The same numbers in another dtype."""
    dtype = getattr(namespace(x), kind)
    return x.astype(dtype) if hasattr(x, "astype") else x.to(dtype)


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


def described(x: Array) -> str:
    """For an error: where it lies."""
    return "in host memory" if on_host(x) else f"on {x.device}"
