"""Every collective on GPU arrays against the same call on NumPy arrays, by the same ranks: the same bits.

All of it runs in the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

import hocket
from hocket.algorithms.language import registry
from hocket.algorithms.language.contract import CONTRACTS
from hocket.extending import REDUCING
from hocket.system.cuda import driver
from support.gpu.arrays import GpuArray, empty, put

BIG = (9 << 20) // 4 + 3
"""float32 elements: two slots of cuda_ipc/protocol.h, a piece of a third, and an odd end."""
KERNELS = {
    "float32": ("sum", "prod", "min", "max"), "bfloat16": ("sum", "max"), "float16": ("sum", "min"),
    "int32": ("sum", "max"), "int64": ("sum", "prod"),
}  # fmt: skip
"""Reductions by dtype; the floats' averages too."""
MEETING = (("float32", "sum"), ("float32", "max"), ("bfloat16", "sum"), ("int64", "sum"))
"""Reductions by kernels that meet."""
EXPRESSIONS = {"float32": "a + a - b", "bfloat16": "a > b ? a : b", "bool": "a + b"}
"""Users' ops, in CUDA C++."""
ROOTED = {name for name, row in CONTRACTS.items() if row.rooted}
IN_PLACE = {name for name, row in CONTRACTS.items() if row.in_place}
BLOCKS = ("reduce_scatter", "scatter", "alltoall")
"""x has a block for each rank."""
Array = np.ndarray[Any, Any]


def dtype_of(name: str) -> Any:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def values(rank: int, count: int, dtype: str) -> Array:
    """Floats whose sums depend on the order of the operands; integers that overflow."""
    dice = np.random.default_rng([rank, count])
    if dtype.startswith("int"):
        return dice.integers(-(1 << 30), 1 << 30, count).astype(dtype)
    return (dice.standard_normal(count) * 3).astype(np.float32).astype(dtype_of(dtype))


def same(got: Any, want: Any, what: str) -> None:
    if want is None or got is None:
        assert got is None and want is None, f"{what}: {got!r}, not {want!r}"
        return
    there = got.get()
    assert there.shape == want.shape and there.dtype == want.dtype, f"{what}: {there.shape}, not {want.shape}"
    if there.tobytes() != want.tobytes():
        wrong = np.flatnonzero(there.reshape(-1).view(np.uint8) != want.reshape(-1).view(np.uint8)) // want.itemsize
        first = int(wrong[0])
        raise AssertionError(f"{what}: element {first} of {len(want)}: {there[first]}, not {want[first]}")


def call(comm: Any, collective: str, x: Any, *args: Any, **how: Any) -> Any:
    if how.get("order") == "any" or collective not in ("allreduce", "reduce", "reduce_scatter"):
        how.pop("order", None)
    return getattr(comm, collective)(x, *args, **how)


def check(comm: Any, collective: str, x: Array, args: tuple[Any, ...] = (), out: int | None = None, **how: Any) -> None:
    """The call on `x` and on a copy in the GPU's memory, into `out` elements if that is asked for."""
    host, device = x.copy(), put(x)
    into = [None, None] if out is None else [np.full(out, 1, x.dtype), put(np.full(out, 1, x.dtype))]
    more = [{} if array is None else {"out": array} for array in into]
    want = call(comm, collective, host, *args, **how, **more[0])
    got = call(comm, collective, device, *args, **how, **more[1])
    what = f"{collective} of {x.dtype}[{x.size}] {args} {how} out={out} on rank {comm.rank} of {comm.size}"
    if into[1] is not None:
        assert got is into[1] or got is None, f"{what}: the result is not out"
    elif collective in IN_PLACE:
        assert got is device, f"{what}: it is not in place"
    same(got, want, what)
    same(device, host, f"x after {what}")
    if into[1] is not None:
        same(into[1], into[0], f"out after {what}")


def algorithms(collective: str, size: int) -> Iterator[str]:
    for name in registry.names(collective):
        if registry.get(collective, name).requires(size) is None:
            yield name


def by_every_algorithm(comm: Any) -> None:
    """Lengths from nothing to several slots; every root."""
    for collective in CONTRACTS:
        for turn, name in enumerate(algorithms(collective, comm.size)):
            for count in (0, 1, 3, 1001, 70_003):
                how: dict[str, Any] = {"root": (turn + count) % comm.size} if collective in ROOTED else {}
                if collective in REDUCING:
                    how["op"] = "sum"
                check(comm, collective, of(comm, collective, count), algorithm=name, **how)


def of(comm: Any, collective: str, count: int, dtype: str = "float32") -> Array:
    return values(comm.rank, count * comm.size if collective in BLOCKS else count, dtype)


def in_several_slots(comm: Any) -> None:
    """Messages longer than a slot, with an odd end, by one algorithm of each kind."""
    cases = (("allreduce", "ring"), ("allreduce", "tree"), ("allreduce", "one_shot"), ("broadcast", "chain"),
             ("broadcast", "direct"), ("allgather", "direct"), ("reduce_scatter", "direct"), ("alltoall", "pairwise"),
             ("scan", "linear"))  # fmt: skip
    for collective, name in cases:
        check(comm, collective, of(comm, collective, BIG // (comm.size if collective in BLOCKS else 1)), algorithm=name)


def every_dtype_and_op(comm: Any) -> None:
    """By whatever is chosen, in rank order: then there is one right answer."""
    for dtype, ops in KERNELS.items():
        averages = () if dtype.startswith("int") else ("avg",)
        for op in (*ops, *averages):
            for count in (5, 4099):
                for collective in sorted(REDUCING):
                    if op == "avg" and collective in ("scan", "exscan"):
                        continue
                    x = of(comm, collective, count, dtype)
                    check(comm, collective, x, op=op, order="rank")
        for collective in ("broadcast", "allgather", "alltoall"):
            check(comm, collective, of(comm, collective, 4099, dtype))


def every_way_out(comm: Any) -> None:
    """out= beside x; out= is x; a block of out is x."""
    n, p = 1003, comm.size
    lengths = {"allgather": n * p, "gather": n * p, "scatter": n, "reduce_scatter": n, "alltoall": n * p}
    for collective in ("allreduce", "reduce", "scan", "exscan", *lengths):
        root = {"root": p - 1} if collective in ROOTED else {}
        check(comm, collective, of(comm, collective, n), out=lengths.get(collective, n), **root)
    x = values(comm.rank, n, "float32")
    here = put(x)
    assert comm.allreduce(here, out=here) is here
    same(here, comm.allreduce(x.copy()), "allreduce into x itself")
    whole = put(np.zeros(n * p, np.float32))
    whole.part(comm.rank * n, (comm.rank + 1) * n).set(x)
    comm.allgather(whole.part(comm.rank * n, (comm.rank + 1) * n), out=whole)
    same(whole, comm.allgather(x), "allgather in place")


def with_counts(comm: Any) -> None:
    """The calls whose ranks have blocks of their own lengths, one of them nothing."""
    p, rank = comm.size, comm.rank
    counts = [0 if r == 1 else 700 + 13 * r for r in range(p)]
    table = [[(r * p + s) % 3 * 301 for s in range(p)] for r in range(p)]
    own, everything = values(rank, counts[rank], "float32"), values(rank, sum(counts), "float32")
    check(comm, "allgatherv", own, (counts,))
    check(comm, "gatherv", own, (counts,), root=p - 1)
    check(comm, "scatterv", everything, (counts,), root=p - 1)
    check(comm, "reduce_scatterv", everything, (counts,))
    sent, received = table[rank], [table[s][rank] for s in range(p)]
    check(comm, "alltoallv", values(rank, sum(sent), "float32"), (sent, received))


def messages(comm: Any) -> None:
    """send and recv: through host memory."""
    x, into = put(values(comm.rank, 999, "float32")), empty(999, np.float32)
    comm.sendrecv(x, (comm.rank + 1) % comm.size, into, (comm.rank - 1) % comm.size)
    same(into, values((comm.rank - 1) % comm.size, 999, "float32"), "sendrecv")


def everything(comm: Any) -> None:
    for part in (every_way_out, with_counts, messages, by_every_algorithm, every_dtype_and_op, in_several_slots):
        part(comm)
        comm.barrier()
    assert comm.gpus.why_staged == ""


def staged(comm: Any, function: Any) -> None:
    """A call of each kind, on this rank's GPU; `function` gives the larger of two elements."""
    gpu = comm.rank % driver.count()
    given = [values(r, 1003, "float32") for r in range(comm.size)]
    x = put(given[comm.rank], gpu)
    for algorithm in (None, "ring"):
        comm.allreduce(x, algorithm=algorithm, order="any")
    want = given[comm.rank].copy()
    for algorithm in (None, "ring"):
        comm.allreduce(want, algorithm=algorithm)
    same(x, want, "allreduce")
    comm.allreduce(x, function)
    want = comm.allreduce(want, "max")
    same(x, want, "allreduce by a function")
    comm.broadcast(x, root=1, async_op=True).wait()
    out = GpuArray(1003 * comm.size, np.float32, gpu)
    assert comm.allgather(x, out=out) is out
    same(out, np.tile(want, comm.size), "allgather")
    there, owed = put(given[comm.rank], gpu), put(np.zeros(1003, np.float32), gpu)
    host, left = given[comm.rank].copy(), np.zeros(1003, np.float32)
    comm.allreduce(there, codec="int8", residual=owed)
    comm.allreduce(host, codec="int8", residual=left)
    same(there, host, "allreduce with a residual")
    same(owed, left, "what it lost")


def of_many_ranks(comm: Any) -> None:
    """More operands than the usual kernels take, one of which is overwritten."""
    for name in ("one_shot", "direct"):
        for count in (5, 4099):
            for dtype in ("float32", "bfloat16"):
                check(comm, "allreduce", of(comm, "allreduce", count, dtype), algorithm=name)
            for codec in ("fp16", "int8"):
                check(comm, "allreduce", of(comm, "allreduce", count), algorithm=name, codec=codec)


def between_hosts(comm: Any) -> None:
    """By algorithms that take each kind of step, in lengths from nothing to several slots of both kinds."""
    for count in (0, 5, 70_003, BIG):
        for name in (None, "hierarchical", "ring", "tree", "recursive_doubling"):
            check(comm, "allreduce", of(comm, "allreduce", count), algorithm=name)
        for collective in ("broadcast", "allgather", "reduce_scatter", "alltoall", "scan"):
            length = count // comm.size if collective in BLOCKS else count
            root = {"root": comm.size - 1} if collective == "broadcast" else {}
            check(comm, collective, of(comm, collective, length), **root)
    with_counts(comm)
    assert comm.gpus.why_staged == ""


def by_kernels(comm: Any) -> None:
    """Calls that kernels that meet carry out, and those next to them: just too long, of uneven blocks, out of place."""
    least = (1 << 18) + 1  # too many
    for collective, name in (("allreduce", "one_shot"), ("allreduce", "direct"), ("reduce_scatter", "direct"),
                             ("allgather", "direct")):  # fmt: skip
        for count in (0, 1, 3, 1001, 70_003, least - 1, least):
            length = count // comm.size if collective == "reduce_scatter" else count
            check(comm, collective, of(comm, collective, length), algorithm=name)
    for dtype, op in MEETING:
        for collective in ("allreduce", "reduce_scatter"):
            check(comm, collective, of(comm, collective, 4099, dtype), op=op, order="rank")
    for dtype in ("float32", "bfloat16"):
        check(comm, "allreduce", of(comm, "allreduce", 4099, dtype), op="avg", order="rank")
    check(comm, "allreduce", of(comm, "allreduce", 501), op=hocket.premul_sum(2.5), order="rank")
    x = put(values(comm.rank, 900, "float32"))
    comm.allreduce(x, hocket.expression(EXPRESSIONS["float32"]))
    total = values(0, 900, "float32")
    for rank in range(1, comm.size):
        total = total + total - values(rank, 900, "float32")
    same(x, total, "an expression")
    backwards = comm.split(0, -comm.rank)
    x.set(values(backwards.rank, 900, "float32"))  # rank order is that of the communicator, not of the world
    backwards.allreduce(x, hocket.expression(EXPRESSIONS["float32"]))
    assert backwards.gpus.why_apart == ""
    same(x, total, "an expression, ranks in another order")
    backwards.close()
    wide = put(np.concatenate([values(comm.rank, 1, "float32"), values(comm.rank, 1001, "float32")]))
    comm.allreduce(wide.part(1, 1002))  # not aligned to 16 bytes
    want = comm.allreduce(values(comm.rank, 1001, "float32"), algorithm="one_shot")
    same(wide.part(1, 1002), want, "an odd address")
    every_way_out(comm)
    with_counts(comm)
    check(comm, "allgather", of(comm, "allgather", 4099, "bfloat16"))
    assert comm.gpus.why_staged == comm.gpus.why_apart == ""


def on_devices(comm: Any) -> None:
    """Every rank's arrays are on the GPU of its number, in turn."""
    gpu = comm.rank % driver.count()
    for count in (5, 4099, BIG):
        for name in algorithms("allreduce", comm.size):
            given = values(comm.rank, count, "float32")
            x = put(given, gpu)
            comm.allreduce(x, algorithm=name)
            same(x, comm.allreduce(given.copy(), algorithm=name), f"{name} of {count} on GPU {gpu}")
    out = GpuArray(5 * comm.size, np.float32, gpu)
    comm.allgather(put(np.full(5, comm.rank, np.float32), gpu), out=out)
    same(out, np.repeat(np.arange(comm.size, dtype=np.float32), 5), "allgather")
    assert comm.gpus.why_staged == ""
