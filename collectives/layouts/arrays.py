"""The arrays of a redistribution, as NumPy sees their bytes: elements are words, whatever their dtype is."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy

from hocket.collectives.arrays.buffers import describe, empty_like
from hocket.errors import ArgumentError
from hocket.kernels.dtypes import DType

WORDS = {1: numpy.uint8, 2: numpy.uint16, 4: numpy.uint32, 8: numpy.uint64, 16: numpy.complex128}
Words = numpy.ndarray[Any, Any]


def word_of(dtype: DType) -> Any:
    """NumPy's dtype for an element without a meaning."""
    return numpy.dtype(WORDS.get(dtype.itemsize, f"V{dtype.itemsize}"))


class Array:
    """One array of the caller's: its dtype, its shape, and its elements as words.

    Raises ArgumentError for what no call takes, and for arrays on a GPU.
    """

    def __init__(self, array: Any, what: str, written: bool = False) -> None:
        buffer = describe(array, what)
        if buffer.foreign:
            raise ArgumentError(f"{what} is on a GPU: redistribute moves arrays in host memory; copy it there first")
        if written and not buffer.writable:
            raise ArgumentError(f"{what} cannot be written: it is read-only")
        self.array, self.dtype, self.shape = array, buffer.dtype, buffer.shape
        self.of_torch = hasattr(array, "data_ptr")
        self.words = _words(array, self.dtype)

    @property
    def address(self) -> int:
        """Where it begins; 0 if it does not lie in C's order, or has no elements."""
        return int(self.words.ctypes.data) if self.words.flags.c_contiguous and self.words.size else 0

    @property
    def span(self) -> tuple[int, int]:
        """The addresses that it lies between."""
        low, high = numpy.lib.array_utils.byte_bounds(self.words) if self.words.size else (0, 0)
        return int(low), int(high)


def _words(array: Any, dtype: DType) -> Words:
    """A view of the elements as unsigned numbers of their size; of other sizes as bytes without a meaning."""
    word = word_of(dtype)
    if hasattr(array, "data_ptr"):
        shape, strides = tuple(array.shape), tuple(n * dtype.itemsize for n in array.stride())
        if not math.prod(shape):
            return numpy.empty(shape, word)
        extent = dtype.itemsize + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        memory = (ctypes.c_char * extent).from_address(array.data_ptr())
        memory._kept = array  # its memory is this one's
        return numpy.ndarray(shape, word, memory, strides=strides)
    own = array if isinstance(array, numpy.ndarray) else numpy.asarray(_exported(array))
    return own.view(word)


def _exported(array: Any) -> Any:
    return array if hasattr(array, "__array_interface__") or hasattr(array, "__array__") else memoryview(array)


def new(shape: Sequence[int], dtype: DType, like: Any | None, torch_like: bool) -> Any:
    """An array of this shape and dtype, of the kind of `like`, else torch's if others have it, or NumPy's."""
    import sys

    if like is not None and like.dtype == dtype:
        return empty_like(describe(like.array), tuple(shape))
    torch: Any = sys.modules.get("torch") if torch_like or not dtype.numpy else None
    if torch is not None and dtype.torch:
        return torch.empty(tuple(shape), dtype=getattr(torch, dtype.torch.removeprefix("torch.")))
    return numpy.empty(tuple(shape), numpy_dtype(dtype))


def numpy_dtype(dtype: DType) -> Any:
    """NumPy's dtype, with ml_dtypes' names; pairs are structures, and unnamed bytes `V`."""
    if dtype.kind == "pair":
        value, index = dtype.name.split("_")
        return numpy.dtype([("value", value), ("index", index)])
    if dtype.kind == "opaque":
        return numpy.dtype(f"V{dtype.itemsize}")
    try:
        return numpy.dtype(dtype.numpy)
    except TypeError:
        try:
            import ml_dtypes
        except ImportError:
            raise ArgumentError(f"NumPy has no dtype {dtype.name}: install ml_dtypes, or pass torch tensors") from None
        return numpy.dtype(getattr(ml_dtypes, dtype.numpy))


def convertible(have: DType, want: DType) -> bool:
    """May elements become the other dtype, rounded once?  Numbers of a kind, or of one that has all of its values."""
    order = ["bool", "uint", "int", "float", "complex"]
    return have == want or ({have.kind, want.kind} <= {*order} and order.index(have.kind) <= order.index(want.kind))


def converted(words: Words, have: DType, want: DType) -> Words:
    """The elements as the other dtype's words, a new array."""
    values = words.view(numpy_dtype(have)).astype(numpy_dtype(want))
    made: Words = values.view(word_of(want))
    return made
