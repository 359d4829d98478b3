"""Arrays of floats, NumPy's or torch's, without an import of torch."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from hocket.arguments import kind, seen_through
from hocket.compression.memory import alike, contiguous, dtype_of
from hocket.errors import ArgumentError
from hocket.extending import on_host, place
from hocket.training.overlap.dealing import Tensor

ITEMSIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
"""The dtypes that gradients may have."""


def tensor_of(name: str, like: Any) -> Tensor | None:
    """The Tensor that an array declares; None: it is no array of floats."""
    dtype = dtype_of(like)
    if dtype not in ITEMSIZES or not hasattr(like, "shape") or isinstance(like, np.generic) or seen_through(like, ""):
        return None
    return Tensor(name, int(np.prod(tuple(like.shape), dtype=np.int64)), dtype, ITEMSIZES[dtype])


def fit(call: str, name: str, array: Any, method: Any) -> Tensor | str:
    """The Tensor that `call` names; or why this method of compression cannot average it."""
    tensor = tensor_of(name, array)
    if not isinstance(name, str) or tensor is None:
        return f"{call}({name!r}): expected a string, and an array of floats; got {described(array)}"
    if method is None or on_host(array) or not method.host:
        return tensor
    lies = f"it is {place(array)}, and {method.name!r} works in host memory: {method.host}"
    return f"{call}({name!r}): {lies}; take another, or codec="


def described(value: Any) -> str:
    """For an error: dtype and shape, or what it is instead of an array."""
    if isinstance(value, np.generic):  # a sum of all elements is one, and no average can be put into it
        return f"{value.dtype}, which is a number: np.asarray makes an array of it"
    if seen_through(value, ""):
        return "a masked array, whose mask would be lost"
    return f"{value.dtype}{tuple(value.shape)}" if hasattr(value, "shape") and hasattr(value, "dtype") else kind(value)


def zeros(dtype: str, count: int, like: Any = None) -> Any:
    """Zeros of this dtype, as NumPy's, or as those of `like`."""
    if like is None and dtype == "bfloat16":  # which NumPy has not; some other rank has a tensor of it
        torch: Any = sys.modules.get("torch")
        if torch is None:
            raise ArgumentError(
                "another rank averages a tensor of bfloat16, which NumPy does not have: import torch here"
            )
        like = torch.empty(0, dtype=torch.bfloat16)
    made = np.empty(count, dtype) if like is None else alike(like, count)
    made[...] = 0
    return made


def writable(array: Any) -> bool:
    return bool(getattr(getattr(array, "flags", None), "writeable", True))


def host(array: Any) -> Any:
    """The same memory as a NumPy array."""
    return array if isinstance(array, np.ndarray) else array.detach().numpy()


def seen(array: Any) -> Any:
    """The same, but for an array on a GPU."""
    return host(array) if on_host(array) else array.detach() if hasattr(array, "detach") else array


def one_memory(array: Any) -> bool:
    """Does `array.reshape(-1)` share its memory?"""
    return bool(array.is_contiguous() if hasattr(array, "is_contiguous") else array.flags.c_contiguous)


def line(array: Any) -> Any:
    """An array's elements as a contiguous array of one axis: the same memory where `one_memory`, else a copy."""
    return contiguous(array.reshape(-1))


@np.errstate(all="ignore")
def finite(array: Any) -> bool:
    """Does it hold no NaN and no infinity?  A finite sum says yes; else each element is looked at."""
    return bool(abs(float(array.sum())) < np.inf) or bool((abs(array) < np.inf).all())
