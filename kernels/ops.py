"""The op table: what a reduction can do to two elements, and which dtypes it is defined for.

The codes are those of kernels/ops.h.  `avg` and `premul_sum` are not here: they are a sum and a scale.
"""

from __future__ import annotations

from typing import NamedTuple

from hocket.arguments import choices
from hocket.errors import ArgumentError
from hocket.kernels.dtypes import DType


class Reduction(NamedTuple):
    """One row: the dtype kinds it accepts, and the words an error uses for them."""

    code: int
    name: str
    kinds: frozenset[str]
    needs: str
    aliases: tuple[str, ...]


_INTEGERS = frozenset({"bool", "int", "uint"})
_ORDERED = _INTEGERS | {"float"}
_NUMBERS = _ORDERED | {"complex"}
_PAIRS = frozenset({"pair"})
_LAYOUTS = "packed pairs {value, index} of {f4, i4}, {f8, i8}, {i4, i4} or {i8, i8}, as x.astype('f8,i8')"

OPS: tuple[Reduction, ...] = tuple(
    Reduction(code, *row)
    for code, row in enumerate(
        (
            ("sum", _NUMBERS, "numbers or bool", ("add",)),
            ("prod", _NUMBERS, "numbers or bool", ("product", "mul", "multiply")),
            ("min", _ORDERED, "real numbers or bool", ("minimum",)),
            ("max", _ORDERED, "real numbers or bool", ("maximum",)),
            ("band", _INTEGERS, "integers or bool", ("bitwise_and",)),
            ("bor", _INTEGERS, "integers or bool", ("bitwise_or",)),
            ("bxor", _INTEGERS, "integers or bool", ("bitwise_xor",)),
            ("land", _ORDERED, "real numbers or bool", ("logical_and",)),
            ("lor", _ORDERED, "real numbers or bool", ("logical_or",)),
            ("lxor", _ORDERED, "real numbers or bool", ("logical_xor",)),
            ("minloc", _PAIRS, _LAYOUTS, ("min_loc", "argmin")),
            ("maxloc", _PAIRS, _LAYOUTS, ("max_loc", "argmax")),
        )
    )
)

_BY_NAME = {name: op for op in OPS for name in (op.name, *op.aliases)}
_CALLED = [op.name for op in OPS[:4]] + ["avg"] + [op.name for op in OPS[4:]]
"""The names that a caller may use; `avg` is among them, which the caller makes of a sum."""
_SYNONYMS = {alias: op.name for op in OPS for alias in op.aliases} | {"mean": "avg", "average": "avg"}


def by_name(name: str) -> Reduction:
    """The row called `name`, in any case, or one of its aliases."""
    try:
        return _BY_NAME[name.lower()]
    except KeyError:
        raise ArgumentError(f"{name!r} is not an op; {choices(name, _CALLED, _SYNONYMS)}") from None


def lookup(op: str, dtype: DType) -> int:
    """The code of `op`, if it is defined for `dtype`."""
    row = by_name(op)
    if dtype.kind not in row.kinds:
        raise ArgumentError(f"op {row.name!r} needs {row.needs}, got {dtype.name}")
    return row.code
