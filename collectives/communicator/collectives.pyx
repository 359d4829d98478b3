# cython: annotation_typing=False
"""The collectives of a communicator.  Its page (communicator.py) says what they have in common.

They are Cython's, as methods of Python's take longer.  A barrier of one rank took 0.19 us, and takes 0.10 (AMD EPYC,
Zen 3: `python -m timeit -s "import hocket; c = hocket.init()" "c.barrier()"`).  Their types are for the reader and
`help`; C shall not take them for its own (annotation_typing).
"""

from collections.abc import Sequence
from typing import Any

from cpython.ref cimport PyObject

from hocket.collectives.calls.ask cimport Ask, asking
from hocket.collectives.quick.shortcut cimport ShortWay, owned

from hocket.algorithms.language.registry import Algorithm
from hocket.collectives.calls.ops import Op
from hocket.collectives.calls.numbers import KINDS
from hocket.collectives.quick.shortcut import NOTHING, TREES
from hocket.errors import ArgumentError
from hocket.kernels.codecs import Codec

cdef object nothing = NOTHING   # a name of C's: a barrier is short


cdef class Collectives(ShortWay):
    """All ranks call these in the same order."""

    cdef object _added(self, object x, object out, Ask* ask, object axis):
        """A call on rows that are added: never a short one."""
        if isinstance(x, KINDS) or isinstance(x, TREES):
            raise ArgumentError(f"axis={axis!r} takes one array, whose rows are added; got a {type(x).__name__}")
        return self.shortcut.runner().general(x, out, owned(ask)._replace(axis=axis))

    # --- reductions

    def allreduce(
        self, x: Any, op: Op = "sum", out: Any = None, async_op: bool = False, timeout: float | None = None,
        algorithm: str | Algorithm | None = None, transport: str | None = None, order: str = "any",
        codec: str | Codec | None = None, residual: Any = None, owner_residual: Any = None, axis: int | None = None,
    ) -> Any:
        """Combine all ranks' x; every rank gets the result, in place or in `out`.

        order="rank": combine strictly in rank order.  order="exact": the sum of floats is rounded once, so its bits
        depend on the addends alone, not on who has them or adds first (docs/numbers.md).  All ranks hold the same bits
        in any case.  Cost: at least 2n(p-1)/p bytes per rank.

        `axis`: 0, with order="exact": the rows of x are addends, too.  The result, of x.shape[1:], is a new array or
        `out`; ranks may have different numbers of rows, also none.  An average of no rows at all is an ArgumentError.

        `owner_residual`: (before, after) as `residual`, of the sums: who encodes the sum of an element adds its
        `before` to it, and has in `after` what the encoding loses.  Both are of x's shape; a rank touches only the
        elements whose sum it encodes ("direct": the r-th of p equal parts of whole blocks).  So over all ranks the sum
        of x and of every `before` is the result, as a sum, and every `after`.  An algorithm that encodes two sums of an
        element on one rank, or one on two ranks, cannot keep a residual: it is not chosen, and refused if named.

        >>> import hocket, numpy as np
        >>> hocket.local_world(4).run(lambda comm: comm.allreduce(np.ones(3)).tolist())[0]
        [4.0, 4.0, 4.0]
        >>> def twice(comm):
        ...     lost = np.zeros(2, np.float32)
        ...     given = [np.float32([7, 0.4]) for _ in range(2)]
        ...     return [comm.allreduce(x, "avg", codec="int4", residual=lost).tolist() for x in given]
        >>> hocket.local_world(2).run(twice)[0]
        [[7.0, 0.0], [7.0, 1.0]]
        """
        cdef Ask ask = asking("allreduce", op, async_op, timeout, algorithm, transport)
        ask.order, ask.codec = <PyObject*>order, <PyObject*>codec
        ask.residual, ask.owner_residual = <PyObject*>residual, <PyObject*>owner_residual
        return self.call(x, out, &ask) if axis is None else self._added(x, out, &ask, axis)

    def reduce(
        self, x: Any, root: int = 0, op: Op = "sum", out: Any = None, async_op: bool = False,
        timeout: float | None = None, algorithm: str | Algorithm | None = None, transport: str | None = None,
        order: str = "any", axis: int | None = None,
    ) -> Any:
        """Combine all ranks' x; the root gets the result (new, or in `out`), the others None.  x is untouched.

        `axis`: as in `allreduce`.

        Cost: at least n(p-1)/p bytes per rank.
        """
        cdef Ask ask = asking("reduce", op, async_op, timeout, algorithm, transport)
        ask.root, ask.order = <PyObject*>root, <PyObject*>order
        return self.call(x, out, &ask) if axis is None else self._added(x, out, &ask, axis)

    def reduce_scatter(
        self, x: Any, op: Op = "sum", out: Any = None, async_op: bool = False, timeout: float | None = None,
        algorithm: str | Algorithm | None = None, transport: str | None = None, order: str = "any",
        codec: str | Codec | None = None, residual: Any = None, owner_residual: Any = None, axis: int | None = None,
    ) -> Any:
        """Combine all ranks' x of size * m rows; rank r gets rows r*m .. (r+1)*m.  n(p-1)/p bytes per rank.

        `owner_residual`: as in `allreduce`; by "direct" rank r touches its own rows of it.
        """
        cdef Ask ask = asking("reduce_scatter", op, async_op, timeout, algorithm, transport)
        ask.order, ask.codec = <PyObject*>order, <PyObject*>codec
        ask.residual, ask.owner_residual = <PyObject*>residual, <PyObject*>owner_residual
        return self.call(x, out, &ask) if axis is None else self._added(x, out, &ask, axis)

    def reduce_scatterv(
        self, x: Any, counts: Sequence[int], op: Op = "sum", out: Any = None, async_op: bool = False,
        timeout: float | None = None, algorithm: str | Algorithm | None = None, transport: str | None = None,
        order: str = "any", codec: str | Codec | None = None, residual: Any = None, owner_residual: Any = None,
        axis: int | None = None,
    ) -> Any:
        """reduce_scatter with counts[r] rows for rank r; all ranks give the same counts."""
        counts = _given(counts)
        cdef Ask ask = asking("reduce_scatter", op, async_op, timeout, algorithm, transport)
        ask.counts, ask.order, ask.codec = <PyObject*>counts, <PyObject*>order, <PyObject*>codec
        ask.residual, ask.owner_residual = <PyObject*>residual, <PyObject*>owner_residual
        return self.call(x, out, &ask) if axis is None else self._added(x, out, &ask, axis)

    def scan(
        self, x: Any, op: Op = "sum", out: Any = None, async_op: bool = False, timeout: float | None = None,
        algorithm: str | Algorithm | None = None, transport: str | None = None, order: str = "rank",
    ) -> Any:
        """Rank r gets the combination of ranks 0..r, in rank order; in place or in `out`.

        order="exact": sums of floats are rounded once.  Cost: ceil(log2 p) steps of n bytes.
        """
        cdef Ask ask = asking("scan", op, async_op, timeout, algorithm, transport)
        order = _kept_order(order)
        ask.order = <PyObject*>order
        return self.call(x, out, &ask)

    def exscan(
        self, x: Any, op: Op = "sum", out: Any = None, async_op: bool = False, timeout: float | None = None,
        algorithm: str | Algorithm | None = None, transport: str | None = None, order: str = "rank",
    ) -> Any:
        """Rank r gets the combination of ranks 0..r-1; rank 0's result is left as it was.  `order`: as in `scan`."""
        cdef Ask ask = asking("exscan", op, async_op, timeout, algorithm, transport)
        order = _kept_order(order)
        ask.order = <PyObject*>order
        return self.call(x, out, &ask)

    # --- movement

    def broadcast(
        self, x: Any, root: int = 0, async_op: bool = False, timeout: float | None = None,
        algorithm: str | Algorithm | None = None, transport: str | None = None,
        codec: str | Codec | None = None,
    ) -> Any:
        """Give the root's x to all ranks, in place; with codec, what it is rounded to, to the root too.

        Each rank receives n bytes.
        """
        cdef Ask ask = asking("broadcast", None, async_op, timeout, algorithm, transport)
        ask.root, ask.codec = <PyObject*>root, <PyObject*>codec
        return self.call(x, None, &ask)

    def allgather(
        self, x: Any, out: Any = None, async_op: bool = False, timeout: float | None = None,
        algorithm: str | Algorithm | None = None, transport: str | None = None,
        codec: str | Codec | None = None, residual: Any = None,
    ) -> Any:
        """Concatenate all ranks' rows on axis 0, in rank order.  Each rank receives n(p-1)/p bytes."""
        cdef Ask ask = asking("allgather", None, async_op, timeout, algorithm, transport)
        ask.codec = <PyObject*>codec
        ask.residual = <PyObject*>residual
        return self.call(x, out, &ask)

    def allgatherv(
        self, x: Any, counts: Sequence[int], out: Any = None, async_op: bool = False,
        timeout: float | None = None, algorithm: str | Algorithm | None = None, transport: str | None = None,
        codec: str | Codec | None = None, residual: Any = None,
    ) -> Any:
        """allgather with counts[r] rows from rank r; all ranks give the same counts."""
        counts = _given(counts)
        cdef Ask ask = asking("allgather", None, async_op, timeout, algorithm, transport)
        ask.counts, ask.codec = <PyObject*>counts, <PyObject*>codec
        ask.residual = <PyObject*>residual
        return self.call(x, out, &ask)

    def gather(
        self, x: Any, root: int = 0, out: Any = None, async_op: bool = False, timeout: float | None = None,
        algorithm: str | Algorithm | None = None, transport: str | None = None,
    ) -> Any:
        """Concatenate all ranks' rows on axis 0, at the root; None elsewhere.  The root receives n(p-1)/p bytes."""
        cdef Ask ask = asking("gather", None, async_op, timeout, algorithm, transport)
        ask.root = <PyObject*>root
        return self.call(x, out, &ask)

    def gatherv(
        self, x: Any, counts: Sequence[int], root: int = 0, out: Any = None, async_op: bool = False,
        timeout: float | None = None, algorithm: str | Algorithm | None = None, transport: str | None = None,
    ) -> Any:
        """gather with counts[r] rows from rank r; all ranks give the same counts."""
        counts = _given(counts)
        cdef Ask ask = asking("gather", None, async_op, timeout, algorithm, transport)
        ask.root, ask.counts = <PyObject*>root, <PyObject*>counts
        return self.call(x, out, &ask)

    def scatter(
        self, x: Any = None, root: int = 0, out: Any = None, async_op: bool = False,
        timeout: float | None = None, algorithm: str | Algorithm | None = None, transport: str | None = None,
    ) -> Any:
        """Deal out the root's x of size * m rows: rank r gets rows r*m .. (r+1)*m.  The root sends n(p-1)/p bytes.

        The other ranks say what they expect: `out` of m rows, or an x of the root's shape, which is not read.
        """
        cdef Ask ask = asking("scatter", None, async_op, timeout, algorithm, transport)
        ask.root = <PyObject*>root
        return self.call(x, out, &ask)

    def scatterv(
        self, x: Any, counts: Sequence[int], root: int = 0, out: Any = None, async_op: bool = False,
        timeout: float | None = None, algorithm: str | Algorithm | None = None, transport: str | None = None,
    ) -> Any:
        """scatter with counts[r] rows for rank r; all ranks give the same counts.  x may be None with `out`."""
        counts = _given(counts)
        cdef Ask ask = asking("scatter", None, async_op, timeout, algorithm, transport)
        ask.root, ask.counts = <PyObject*>root, <PyObject*>counts
        return self.call(x, out, &ask)

    def alltoall(
        self, x: Any, out: Any = None, async_op: bool = False, timeout: float | None = None,
        algorithm: str | Algorithm | None = None, transport: str | None = None,
        codec: str | Codec | None = None, residual: Any = None,
    ) -> Any:
        """Send rows d*m .. (d+1)*m of x (size * m rows) to rank d; the result holds the rows from each rank in order.

        Cost: each rank sends and receives n(p-1)/p bytes.
        """
        cdef Ask ask = asking("alltoall", None, async_op, timeout, algorithm, transport)
        ask.codec = <PyObject*>codec
        ask.residual = <PyObject*>residual
        return self.call(x, out, &ask)

    def alltoallv(
        self, x: Any, send_counts: Sequence[int], recv_counts: Sequence[int], out: Any = None,
        async_op: bool = False, timeout: float | None = None, algorithm: str | Algorithm | None = None,
        transport: str | None = None, codec: str | Codec | None = None, residual: Any = None,
    ) -> Any:
        """alltoall with send_counts[d] rows to rank d and recv_counts[s] rows from rank s."""
        counts = _given(send_counts, "send_counts"), _given(recv_counts, "recv_counts")
        cdef Ask ask = asking("alltoall", None, async_op, timeout, algorithm, transport)
        ask.counts, ask.codec = <PyObject*>counts, <PyObject*>codec
        ask.residual = <PyObject*>residual
        return self.call(x, out, &ask)

    def barrier(
        self, async_op: bool = False, timeout: float | None = None, algorithm: str | Algorithm | None = None,
        transport: str | None = None,
    ) -> Any:
        """Return when all ranks have called it: an allreduce of nothing."""
        cdef Ask ask = asking("barrier", None, async_op, timeout, algorithm, transport)
        work = self.call(nothing, None, &ask)
        return work.giving(None) if async_op else None


cdef str _kept_order(order):
    """The order of a scan: that of the ranks, unless its sums are exact.  One object for all calls that are alike."""
    return "exact" if order == "exact" else "rank" if order in ("rank", "any") else order


def _given(counts: Sequence[int], what: str = "counts") -> Sequence[int]:
    """`counts`, which a v-variant needs: without them it would be the even call."""
    if counts is None:
        raise ArgumentError(f"{what}=None must be row counts, one per rank; for equal counts use the call without v")
    return counts
