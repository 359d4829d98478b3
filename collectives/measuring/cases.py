"""The cases that can be measured: one line per collective, and a case (collective, dtype, op, root, count) as a value.

Sizes are those of nccl-tests: `nbytes` is the whole vector where every rank has it, and all ranks' blocks together
where each has one; `count` is what a caller passes: the vector's elements, or one block's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy

from hocket.collectives.measuring.comm import Comm
from hocket.errors import ArgumentError
from hocket.kernels.dtypes import by_name


class Collective(NamedTuple):
    """busbw = algbw * factor(size).  Buffers are "all" (the vector), "block" (a size-th of it) or "" (in place)."""

    factor: Callable[[int], float]
    given: str
    result: str
    reduces: bool = False
    rooted: bool = False


def _twice(size: int) -> float:
    return 2 * (size - 1) / size


def _others(size: int) -> float:
    return (size - 1) / size


def _whole(size: int) -> float:
    return 1.0


COLLECTIVES = {
    "allreduce": Collective(_twice, "all", "", reduces=True),
    "reduce": Collective(_whole, "all", "all", reduces=True, rooted=True),
    "reduce_scatter": Collective(_others, "all", "block", reduces=True),
    "broadcast": Collective(_whole, "all", "", rooted=True),
    "allgather": Collective(_others, "block", "all"),
    "gather": Collective(_others, "block", "all", rooted=True),
    "scatter": Collective(_others, "all", "block", rooted=True),
    "alltoall": Collective(_others, "all", "all"),
    "scan": Collective(_whole, "all", "", reduces=True),
    "exscan": Collective(_whole, "all", "", reduces=True),
    "barrier": Collective(_whole, "", ""),
}


LIMITS = {
    "memcpy": Collective(_whole, "all", "all"),
    "duplex": Collective(_whole, "", ""),
    "pingpong": Collective(_whole, "", ""),
}
"""The machine's own speed, measured beside (rivals/hardware.py): copy `count` elements on rank 0; send and receive them
over one TCP socket, both at once; a cache line there and back."""


@dataclass(frozen=True)
class Case:
    """One row of the table, before it is measured."""

    collective: str
    size: int
    count: int
    dtype: str = "float32"
    op: str = "sum"
    root: int = 0

    @property
    def kind(self) -> Collective:
        return (COLLECTIVES | LIMITS)[self.collective]

    @property
    def whole(self) -> int:
        """Elements of the whole vector."""
        return self.count * (self.size if "block" in self.kind[1:3] or self.collective == "alltoall" else 1)

    @property
    def nbytes(self) -> int:
        return self.whole * numpy_dtype(self.dtype).itemsize

    def elements(self, which: str) -> int:
        """The length of a buffer that is "all", "block" or ""."""
        return {"all": self.whole, "block": self.whole // self.size, "": 0}[which]


def case(collective: str, size: int, nbytes: int, dtype: str, op: str, root: int) -> Case:
    """The case nearest to `nbytes` from below, with at least one element per caller."""
    count = nbytes // numpy_dtype(dtype).itemsize
    one = Case(collective, size, 1, dtype, op, root)
    return Case(collective, size, max(1, count // one.whole) if collective != "barrier" else 0, dtype, op, root)


def sizes(first: int, last: int, factor: float) -> list[int]:
    """first, first * factor, ... up to last."""
    if first < 1 or last < first or factor <= 1:
        raise ArgumentError(f"sizes from {first} to {last} by {factor:g}: needs 1 <= begin <= end and a factor above 1")
    lengths = [first]
    while (following := max(lengths[-1] + 1, int(lengths[-1] * factor))) <= last:
        lengths.append(following)
    return lengths


def parse_size(text: str) -> int:
    """8, 64K, 1.5M, 1G: bytes; the letters are powers of 1024, as in nccl-tests."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match:
        raise ArgumentError(f"{text!r} is not a size; accepted: a number of bytes, with K, M or G if you like (64M)")
    return int(float(match[1]) * 1024 ** " KMG".index(match[2].upper() or " "))


def numpy_dtype(name: str) -> numpy.dtype[Any]:
    """The NumPy dtype of a row of the dtype table, those of ml_dtypes included."""
    row = by_name(name)
    if not row.numpy:
        raise ArgumentError(f"dtype {name!r} cannot be measured: it is not a single number; take float32, int64, ...")
    if hasattr(numpy, row.numpy):
        return numpy.dtype(row.numpy)
    try:
        import ml_dtypes
    except ImportError:
        raise ArgumentError(f"dtype {name!r} is not NumPy's own: pip install ml_dtypes") from None
    dtype: numpy.dtype[Any] = numpy.dtype(getattr(ml_dtypes, row.numpy))
    return dtype


def arrays(case: Case) -> list[Any]:
    """The arrays of a call: what it is given, and its result; None where it has none.  All zeros.

    They are written.  Pages that nobody has written are all one page of zeros, which stays in the caches.
    """
    pair = [numpy.empty(case.elements(which), numpy_dtype(case.dtype)) if which else None for which in case.kind[1:3]]
    for array in pair:
        if array is not None:
            array.fill(0)
    return pair


def call_of(comm: Comm, case: Case, given: Any, result: Any) -> Callable[[], object]:
    """The call that a case means."""
    op, root = case.op, case.root
    at_root = comm.rank == root
    calls: dict[str, Callable[[], object]] = {
        "allreduce": partial(comm.allreduce, given, op),
        "reduce": partial(comm.reduce, given, root, op, result if at_root else None),
        "reduce_scatter": partial(comm.reduce_scatter, given, op, result),
        "broadcast": partial(comm.broadcast, given, root),
        "allgather": partial(comm.allgather, given, result),
        "gather": partial(comm.gather, given, root, result if at_root else None),
        "scatter": partial(comm.scatter, given if at_root else None, root, result),
        "alltoall": partial(comm.alltoall, given, result),
        "scan": partial(comm.scan, given, op),
        "exscan": partial(comm.exscan, given, op),
        "barrier": comm.barrier,
    }
    return calls[case.collective]
