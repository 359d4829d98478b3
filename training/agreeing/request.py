"""A rank's submission: a collective of one or more tensors, by name.  Of tensors only dtypes and shapes are told."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from hocket.extending import DTYPES

SIZES = {row.name: row.itemsize for row in DTYPES}
AUTO = ".noname."
"""Part of the names that are given to tensors without one.  They are used once."""


class Spec(NamedTuple):
    """One tensor: the name of its dtype, and its shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * SIZES.get(self.dtype, 8)


class Request(NamedTuple):
    """One collective, as one rank asks for it."""

    kind: str
    """allreduce, allgather, broadcast, alltoall, reducescatter, sparse_allreduce or barrier."""
    name: str
    parts: tuple[Spec, ...] = ()
    """Several in a grouped call: all of them are carried out together."""
    op: str = ""
    root: int = -1
    prescale: float = 1.0
    postscale: float = 1.0
    splits: tuple[int, ...] = ()
    """alltoall: rows for each rank.  No other rank's are like them."""
    codec: str = ""
    """allreduce: how float32 is sent (hocket's `codec=`)."""

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def words(self) -> str:
        """The call, for people."""
        tensors = ", ".join(f"{part.dtype}{list(part.shape)}" for part in self.parts[:3])
        more = f", ... ({len(self.parts)} tensors)" if len(self.parts) > 3 else ""
        arguments = [tensors + more] if tensors else []
        arguments += [f"op={self.op!r}"] if self.op else []
        arguments += [f"root_rank={self.root}"] if self.root >= 0 else []
        arguments += [f"prescale_factor={self.prescale:g}"] if self.prescale != 1 else []
        arguments += [f"postscale_factor={self.postscale:g}"] if self.postscale != 1 else []
        arguments += [f"splits={list(self.splits)}"] if self.splits else []
        arguments += [f"codec={self.codec!r}"] if self.codec else []
        return f"{self.kind}({', '.join(arguments)})"

    def plain(self) -> list[Any]:
        """The request as JSON takes it."""
        parts = [[part.dtype, *part.shape] for part in self.parts]
        return [self.kind, self.name, parts, *self[3:7], list(self.splits), self.codec]


def from_plain(plain: list[Any]) -> Request:
    """The request that `plain` was made of."""
    kind, name, tensors, op, root, prescale, postscale, splits, codec = plain
    parts = tuple(Spec(dtype, tuple(shape)) for dtype, *shape in tensors)
    return Request(kind, name, parts, op, root, prescale, postscale, tuple(splits), codec)
