"""algorithm="mpi": the MPI library's own collective for one of our calls, or why there is none.

MPI's names (datatypes, ops, functions) are in transports/mpi/types.py and call.pyx.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hocket.collectives.calls.call import Call
from hocket.collectives.calls.ops import Resolved
from hocket.collectives.plans.instr import offsets
from hocket.kernels import ops as kernel_ops
from hocket.transports.mpi.types import moving, reducing

EXACT = "it adds as its library does, and order='exact' needs hocket's own sums: omit algorithm="
NO_JOB = "these ranks are not an MPI job: start them with mpirun, with mpi4py installed, or use hocket.from_mpi"
SAME = {"allreduce": "Allreduce", "scan": "Scan", "exscan": "Exscan", "reduce": "Reduce", "broadcast": "Bcast"}
"""Collectives of vectors: one count."""


def refusal(world: Any, on_gpu: bool, call: Call, how: Resolved) -> str | None:
    """Why MPI cannot carry out this call; None if it can.  The same on all ranks."""
    if call.exact is not None:
        return EXACT
    if world.mpi is None:
        return NO_JOB
    if how.user is not None or how.expression is not None:
        return "MPI cannot call a function or an expression as op; leave the choice of the algorithm to hocket"
    if not how.name:
        return None
    reduction = reducing(call.model.dtype.name, op_of(how))
    return reduction.why or None


def offered(world: Any, call: Call, how: Resolved) -> tuple[str, ...]:
    """The libraries among which a call may choose by itself.

    None where only some threads may call MPI: our choice must not make an allowed call fail.
    """
    return ("mpi",) if world.mpi_everywhere and refusal(world, False, call, how) is None else ()


def library_call(job: Any, comm: Any, call: Call, how: Resolved, rank: int, size: int) -> Any:
    """The MPI function that does what `call` says on `comm`, ready to be called."""
    from hocket.transports.mpi.call import MpiCall

    MPI, per = job.mpi.MPI, 1
    words: dict[str, Any] = {"comm": comm.handle, "root": call.root}
    if how.name:
        reduction = reducing(call.model.dtype.name, op_of(how))
        name, words["op"] = reduction.datatype, getattr(MPI, reduction.op).handle
    else:
        name, per = moving(call.model.dtype.itemsize)
    words["type"] = getattr(MPI, name).handle
    counts = None if call.counts is None else [n * per for n in call.counts]
    function = _function(call, counts)
    words |= _counts(function, call.count * per, counts, rank, size)
    overlap = (0, 0)
    if call.collective == "reduce_scatter" and call.src is not None and call.dst is not None:
        overlap = call.src.nbytes, call.dst.nbytes  # our result may be a part of x
    in_place = call.in_place and call.collective != "broadcast"
    return MpiCall(job.mpi, function, words, in_place, overlap)


def op_of(how: Resolved) -> str:
    """avg and premul_sum are sums, scaled by us."""
    return "sum" if how.name in ("avg", "premul_sum") else kernel_ops.by_name(how.name).name


def _function(call: Call, counts: Sequence[int] | None) -> str:
    if call.collective == "barrier":
        return "Barrier"
    if counts is None:
        return SAME[call.collective]
    even = len(set(counts)) == 1 and not call.private  # private: others may see other counts
    if call.collective == "reduce_scatter":
        return "Reduce_scatter_block" if even else "Reduce_scatter"
    return call.collective.capitalize() + ("" if even else "v")


def _counts(function: str, count: int, counts: list[int] | None, rank: int, size: int) -> dict[str, Any]:
    if counts is None:
        return {"count": count}
    if function == "Alltoallv":
        to, of = counts[:size], counts[size:]
        return {"counts": to, "displs": offsets(to), "from_counts": of, "from_displs": offsets(of)}
    return {"count": counts[rank], "counts": counts, "displs": offsets(counts)}
