"""Do all ranks hold the same bits?  Digests are compared, and nothing else travels.  And where are bits promised?"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy

from hocket.algorithms.language.contract import CONTRACTS
from hocket.arguments import choices
from hocket.collectives.arrays.buffers import describe
from hocket.collectives.base.groups import at_once
from hocket.collectives.calls.ask import ORDERS
from hocket.collectives.calls.exact import promised
from hocket.collectives.quick.packing import leaves_of
from hocket.errors import ArgumentError
from hocket.kernels import ops
from hocket.kernels.digest import digest
from hocket.kernels.dtypes import by_name, from_numpy, from_torch_name

if TYPE_CHECKING:
    from hocket.collectives.communicator.communicator import Communicator

Groups = list[tuple[int, ...]]


class Equality:
    """A part of `Communicator`."""

    @at_once
    def check_equal(self, x: Any, timeout: float | None = None) -> dict[str, list[tuple[int, ...]]]:
        """Do all ranks hold the same bits?  What differs, with the ranks that hold the same; {}: nothing does.

        `x`: an array, or lists, tuples and dicts of arrays and numbers, of any structure.  Compared are dtypes, shapes
        and digests of the bytes (XXH64, 64 bits: against accidents, not against intent); 0.0 and -0.0 differ, and a NaN
        is equal to itself.  All ranks call it; `timeout`: seconds.  Cost: one pass over x, and two allgathers of its
        names.

        >>> import hocket, numpy as np
        >>> def compared(comm):
        ...     return comm.check_equal({"w": np.ones(3), "b": np.full(2, comm.rank == 2)})
        >>> hocket.local_world(3).run(compared)[0]
        {"x['b']": [(0, 1), (2,)]}
        """
        return differing(cast("Communicator", self), x, timeout)

    def reproducible(self, call: str, dtype: Any, op: str = "sum", order: str = "any") -> str:
        """Where does this call give the same bits?  "run", "rank order" or "exact"; docs/numbers.md has the promises.

        "run": on all ranks, and in each run of the same program on the same ranks.  "rank order": the same, and
        operands are combined in the order of ranks; brackets depend on the algorithm and the length.  "exact":
        wherever the addends are the same, whoever has them.  `call`: a collective, or its
        v-variant; `dtype`: of NumPy or torch, or its name.  Nothing is sent.

        >>> import hocket
        >>> comm = hocket.local_world(1).comms[0]
        >>> [comm.reproducible("allreduce", "float32", order=order) for order in ("any", "rank", "exact")]
        ['run', 'rank order', 'exact']
        >>> comm.reproducible("allreduce", "int32"), comm.reproducible("allgather", "float32")
        ('exact', 'exact')
        """
        collective = call.removesuffix("v") if isinstance(call, str) else ""
        if collective not in CONTRACTS or call != collective and not CONTRACTS[collective].blocks:
            raise ArgumentError(f"call={call!r} is not a collective; {choices(call, CONTRACTS)}")
        if order not in ORDERS:
            raise ArgumentError(f"order={order!r} is unknown; {choices(order, ORDERS)}")
        if isinstance(dtype, str):
            row = by_name(dtype)
        else:
            text = str(dtype)
            row = from_torch_name(text) if text.startswith("torch.") else from_numpy(numpy.dtype(dtype))
        name = "avg" if op == "avg" else "premul_sum" if op == "premul_sum" else ops.by_name(op).name
        return promised(collective, row, name, order)


def differing(comm: Communicator, tree: Any, timeout: float | None = None) -> dict[str, Groups]:
    """`check_equal` of the communicator."""
    named = zip(*leaves_of(tree), strict=True)
    digests = {name: _digest(array, name) for name, array in named}
    rows = comm.share(digests, "check_equal()", timeout=timeout)
    names = dict.fromkeys(name for row in rows for name in row)
    by_name = {name: _groups([row.get(name) for row in rows]) for name in names}
    return {name: groups for name, groups in by_name.items() if len(groups) > 1}


def _digest(array: Any, name: str) -> str:
    """An array's dtype, shape, and 64 bits of a digest of its bytes."""
    if isinstance(array, (bool, int, float, complex, str, type(None))):
        return repr(array)
    buffer = describe(array, name)
    buffer.stage()
    data = memoryview((ctypes.c_char * buffer.nbytes).from_address(buffer.address)) if buffer.nbytes else b""
    return f"{buffer.dtype.name}{list(buffer.shape)} {digest(data):016x}"


def _groups(digests: Sequence[str | None]) -> Groups:
    """The ranks that hold the same, those of rank 0 first."""
    ranks: dict[str | None, list[int]] = {}
    for rank, each in enumerate(digests):
        ranks.setdefault(each, []).append(rank)
    return [tuple(some) for some in ranks.values()]
