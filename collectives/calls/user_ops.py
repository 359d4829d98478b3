"""A user's function as an op: what it is given, what it may give back, and what it must not do.

`function(a, b)` gets two flattened, one-dimensional pieces of the ranks' arrays, of any length, and returns their
combination, element by element.  `a` is a copy of its own, so `a += b; return a` is fine; `b` cannot be written to
(NumPy) or is a copy (torch).  Both are valid within the call only.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

import numpy

from hocket.collectives.arrays.borrowed import current
from hocket.collectives.arrays.buffers import Buffer
from hocket.collectives.arrays.staging import to_gpu, to_host
from hocket.collectives.arrays.streams import current_stream
from hocket.collectives.base.groups import opened
from hocket.errors import ArgumentError

Function = Callable[[Any, Any], Any]
Fold = Callable[[Sequence[memoryview], memoryview], None]
_thread = threading.local()


@contextlib.contextmanager
def inside() -> Iterator[None]:
    """Inside the block, a user's function runs in this thread, and its engine takes no other call."""
    _thread.inside = True
    opened(1)  # so that calls take the general way, which checks this
    try:
        yield
    finally:
        opened(-1)
        _thread.inside = False


def refuse_inside() -> None:
    """Raise ArgumentError if this thread is in a function that a reduction called."""
    if getattr(_thread, "inside", False):
        raise ArgumentError(
            "a function given as op cannot call hocket: the reduction that calls it would wait for itself"
        )


def told_apart(function: Function) -> str:
    """A name that is equal on all ranks that pass the same function; values that it closes over do not count."""
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return name if code is None else f"{name}#{zlib.crc32(_content(code).encode()):08x}"


def _content(code: CodeType) -> str:
    """The code, without its place in the source.  With Python's version, as another one compiles otherwise."""
    constants = [_content(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    return "|".join([sys.version, code.co_code.hex(), *code.co_names, *constants])


def folded(function: Function, x: Buffer) -> Fold:
    """`function` over the operands that the engine hands out, in rank order, for arrays of x's kind."""
    if x.foreign:
        function = _on_copies(function, x)
    return _of_torch(function, x.array.dtype) if hasattr(x.array, "data_ptr") else _of_numpy(function, x)


def _of_numpy(function: Function, x: Buffer) -> Fold:
    dtype: Any = numpy.dtype(x.array.dtype if hasattr(x.array, "dtype") else x.dtype.numpy)

    def fold(operands: Sequence[memoryview], out: memoryview) -> None:
        total = numpy.frombuffer(operands[0], dtype).copy()
        for operand in operands[1:]:
            piece = numpy.frombuffer(operand, dtype)
            piece.flags.writeable = False
            with inside():
                value = function(total, piece)
            total = _checked(value, numpy.ndarray, piece.shape, dtype, _fits)
            if not total.flags.writeable:  # `b` itself, or a view of it
                total = total.copy()
        numpy.frombuffer(out, dtype)[:] = total

    return fold


def _of_torch(function: Function, dtype: Any) -> Fold:
    torch = sys.modules["torch"]

    def fold(operands: Sequence[memoryview], out: memoryview) -> None:
        total = torch.frombuffer(operands[0], dtype=dtype).clone()
        for operand in operands[1:]:
            piece = torch.frombuffer(operand, dtype=dtype).clone()
            with inside():
                value = function(total, piece)
            total = _checked(value, torch.Tensor, piece.shape, dtype, torch.can_cast)
        torch.frombuffer(out, dtype=dtype)[:] = total

    return fold


def _fits(dtype: Any, wanted: Any) -> bool:
    """Can the result be rounded to the array's dtype?  (ml_dtypes have no casts of the same kind.)"""
    builtin = wanted.isbuiltin == 1
    return dtype == wanted or (numpy.can_cast(dtype, wanted, "same_kind") if builtin else bool(dtype.kind != "c"))


def _checked(value: Any, kind: Any, shape: tuple[int, ...], dtype: Any, fits: Callable[[Any, Any], bool]) -> Any:
    """The function's result, if it is an array of one element for each of `a`."""
    if not isinstance(value, kind) or tuple(value.shape) != tuple(shape):
        what = f"an array of shape {tuple(value.shape)}" if isinstance(value, kind) else f"a {type(value).__name__}"
        what = "None (if it works in place, let it return a)" if value is None else what
        raise ArgumentError(
            f"the function given as op returned {what}; it must return the combination of two pieces, element by "
            f"element: here an array of shape {tuple(shape)}"
        )
    if not fits(value.dtype, dtype):
        raise ArgumentError(f"the function given as op returned {value.dtype} of arrays of {dtype}; convert the result")
    return value


def _on_copies(function: Function, x: Buffer) -> Function:
    """`function` for staged arrays: it gets copies of x's kind, on x's GPU."""
    gpu = x.device
    stream = current_stream(x.array, gpu) if gpu >= 0 else 0

    def call(a: Any, b: Any) -> Any:
        with current(x.array, gpu, stream) if gpu >= 0 else contextlib.nullcontext():
            return to_host(function(to_gpu(x.array, a), to_gpu(x.array, b)))

    return call
