"""Values of `op=`, and their meaning for a plan: a kernel's code, a user's function, a factor before or after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hocket.collectives.arrays.buffers import Buffer
from hocket.collectives.calls.user_ops import Fold, Function, folded, told_apart
from hocket.errors import ArgumentError
from hocket.kernels import ops as kernel_ops
from hocket.kernels.dtypes import DType


@dataclass(frozen=True)
class PremulSum:
    """Sum of factor * x; the factor may differ between ranks.  `hocket.premul_sum(factor)`."""

    factor: float


@dataclass(frozen=True)
class Expression:
    """CUDA C++ that combines `a` and `b`.  `hocket.expression(text)`."""

    text: str
    commutative: bool


Op = str | Function | PremulSum | Expression


def premul_sum(factor: float) -> PremulSum:
    """Make an op that multiplies this rank's x by `factor` before the sum (NCCL's PreMulSum)."""
    try:
        number = float(factor)
    except (TypeError, ValueError):
        raise ArgumentError(f"factor={factor!r} must be a number") from None
    return PremulSum(number)


def expression(text: str, commutative: bool = False) -> Expression:
    """Make an op of CUDA C++ over `a` and `b`, such as "a > b ? a : b", for arrays on GPUs.

    It is compiled once for each dtype, and runs as the built-in ops do.  `a` and `b` have the element's own C type, and
    the result is converted to it; 16- and 8-bit floats are computed in float32.  It must be associative.  Operands are
    combined in rank order, unless it is `commutative` too.  It takes bool, integers and floats, on GPUs only.
    """
    if not isinstance(text, str):
        raise ArgumentError(f"text={text!r} must be CUDA C++ over a and b")
    return Expression(text, commutative)


class Resolved(NamedTuple):
    """An op for one dtype and size."""

    name: str
    code: int
    user: Fold | None = None
    before: float | None = None
    """Factor on this rank's input."""
    after: float | None = None
    """Factor on the result."""
    function: Function | None = None
    """The user's own, which `user` calls with arrays in host memory."""
    expression: Expression | None = None

    @property
    def commutative(self) -> bool:
        """May operands be combined in any order?  A function's never, an expression's if it says so."""
        return self.user is None and (self.expression is None or self.expression.commutative)


LARGEST_ELEMENT = 4096
"""Bytes that every channel delivers in one piece."""


def resolve(op: Op | None, x: Buffer, size: int) -> Resolved:
    """`op` for x's dtype, or an error that says which ops or dtypes fit."""
    if isinstance(op, str):
        if op != "avg":
            return Resolved(kernel_ops.by_name(op).name, kernel_ops.lookup(op, _told(x)))
        return Resolved("avg", _summable(op, x), after=1.0 / size)
    if isinstance(op, PremulSum):
        return Resolved("premul_sum", _summable("premul_sum", x), before=op.factor)
    if isinstance(op, Expression):
        name = f"expression({op.text!r}{', commutative=True' if op.commutative else ''})"
        return Resolved(name, -1, expression=op)
    if callable(op):
        if x.dtype.itemsize > LARGEST_ELEMENT:
            most = f"a function as op takes elements of at most {LARGEST_ELEMENT} bytes"
            raise ArgumentError(f"{most}; those of x have {x.dtype.itemsize}")
        if x.foreign and not hasattr(x.array, "dtype"):
            raise ArgumentError(
                f"a function as op is called with arrays of x's type, and hocket cannot make a "
                f"{type(x.array).__name__}: use a built-in op or hocket.expression"
            )
        return Resolved(told_apart(op), -1, folded(op, x), function=op)
    raise ArgumentError(
        f"op={op!r} is not a reduction: give a name (sum, prod, min, max, avg, ...), premul_sum(factor), a function, "
        "or expression(text)"
    )


def _summable(name: str, x: Buffer) -> int:
    row = kernel_ops.by_name("sum")
    if x.dtype.kind not in row.kinds - {"bool"}:
        raise ArgumentError(f"op {name!r} needs numbers, got {_told(x).name}")
    return row.code


def _told(x: Buffer) -> DType:
    """x's dtype, under the name that the caller knows it by, if hocket knows only its bytes."""
    if x.dtype.kind != "opaque" or not hasattr(x.array, "dtype"):
        return x.dtype
    name = f"{x.array.dtype}, which is only moved, as {x.dtype.name}: convert it, or pass a function as op"
    return x.dtype._replace(name=name)
