"""Numbers instead of arrays: `loss = comm.allreduce(loss)`.

A number, Python's or NumPy's, is an array of one element.  As nothing can be written into it, the result is a new
number of its type, or, where ranks are put together, a NumPy array.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy

from hocket.algorithms.language.contract import CONTRACTS
from hocket.collectives.base.groups import refuse_in_group
from hocket.collectives.calls.ask import Ask
from hocket.errors import ArgumentError

KINDS = (int, float, complex, numpy.number, numpy.bool_)
DTYPES = {bool: numpy.bool_, int: numpy.int64, float: numpy.float64, complex: numpy.complex128}
AGAIN = tuple(name for name, contract in CONTRACTS.items() if not contract.blocks)
"""Collectives whose result is one number."""
TOGETHER = tuple(name for name, contract in CONTRACTS.items() if contract.joins)
"""They put all ranks' numbers into one array."""


def carry_out(call: Callable[[Any, Any, Ask], Any], x: Any, out: Any, ask: Ask) -> Any:
    """`call(x, out, ask)` of the number x."""
    collective = ask.collective
    if collective not in AGAIN + TOGETHER:
        raise ArgumentError(f"{collective} distributes rows, but x={x!r} is a number: pass an array of rows")
    if out is not None and collective in AGAIN:
        raise ArgumentError(f"x={x!r} is a number, so the result is a new one: out must be None")
    refuse_in_group(f"x={x!r} is a number, so the result is a new one", "pass an array")
    result = call(array_of(x), out, ask)
    if collective not in AGAIN:
        return result
    back = partial(number_of, kind_of(x))
    return result.turned(back) if ask.async_op else back(result)


def array_of(x: Any) -> numpy.ndarray[Any, Any]:
    """One element."""
    try:
        return numpy.array([x], DTYPES.get(kind_of(x)))
    except OverflowError:
        raise ArgumentError(f"x={x} does not fit into 64 bits") from None


def kind_of(x: Any) -> type:
    """The type of its result: Python's, for one that is derived of it; NumPy's own."""
    if isinstance(x, (numpy.number, numpy.bool_)):
        return type(x)
    return next(kind for kind in DTYPES if isinstance(x, kind))


def number_of(kind: type, result: Any) -> Any:
    """The element as a number of that type; None is None (reduce, on other ranks than the root)."""
    if result is None:
        return None
    return kind(result[0]) if kind in DTYPES else result[0]
