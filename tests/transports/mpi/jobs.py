"""Programs of ranks under mpirun, for test_mpi.py: `jobs.py NAME,...`, one function each; every rank says "fine NAME".

mpi4py is imported only where the job is about it, so that the others find hocket starting it.  One file, as each rank
of an mpirun starts it anew: a job is a function here and a line of test_mpi.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import hocket
from hocket.algorithms import CONTRACTS
from hocket.collectives.communicator.communicator import Communicator
from hocket.collectives.start import init
from hocket.extending import REDUCING
from hocket.kernels.dtypes import DTYPES
from support.pace import pace

Array = np.ndarray[Any, Any]
MOVING = sorted(set(CONTRACTS) - REDUCING)
NANS, PAIR = ("min", "max"), np.dtype([("value", np.float32), ("index", np.int32)])


def call(comm: Communicator, collective: str, x: Array, **how: Any) -> Array | None:
    """One collective on a copy of x, rooted ones at the last rank."""
    root = {"root": comm.size - 1} if CONTRACTS[collective].rooted else {}
    result: Any = getattr(comm, collective)(x.copy(), **root, **how)
    return None if result is None else np.asarray(result)


def variable(comm: Communicator, x: Array, **how: Any) -> list[Array | None]:
    """The v-variants, on rows that differ by rank."""
    size, rank = comm.size, comm.rank
    counts = [2 * r + (r != 1) for r in range(size)]
    to, of = [(rank + d) % 3 for d in range(size)], [(s + rank) % 3 for s in range(size)]
    mine = x[: counts[rank]].copy()
    root = size - 1
    return [
        comm.allgatherv(mine, counts, **how), comm.gatherv(mine, counts, root, **how),
        comm.scatterv(x[: sum(counts)].copy() if rank == root else None, counts, root, mine.copy(), **how),
        comm.reduce_scatterv(x[: sum(counts)].copy(), counts, **how),
        comm.alltoallv(x[: sum(to)].copy(), to, of, **how),
    ]  # fmt: skip


def dtypes() -> list[np.dtype[Any]]:
    import ml_dtypes

    known = [each for each in DTYPES if each.numpy]
    home: list[Any] = [np if hasattr(np, each.numpy) else ml_dtypes for each in known]
    return [np.dtype(getattr(where, each.numpy)) for where, each in zip(home, known, strict=True)]


def numbers(comm: Communicator, dtype: np.dtype[Any], count: int) -> Array:
    made: Array = np.random.default_rng(comm.rank).integers(0, 3, count).astype(np.float32).astype(dtype)
    return made


def same_bits(a: Array | None, b: Array | None, what: str) -> None:
    assert (a is None) == (b is None), what
    if a is not None and b is not None:
        assert a.dtype == b.dtype and a.tobytes() == b.tobytes(), f"{what}: {a} and {b}"


# --- the transport


def bits() -> None:
    """All collectives, of elements of each length, over transport mpi give the bits that they give over shm."""
    comm = hocket.init()
    mpi = comm.dup()
    assert comm.world.transport((comm.rank + 1) % comm.size) == "shm"
    assert "from MPI" in comm.world.why and comm.world.mpi.size == comm.size
    for dtype in {each.itemsize: each for each in dtypes()}.values():  # the library moves bytes
        for count in (comm.size, 3000 * comm.size):
            x = numbers(comm, dtype, count)
            for collective in CONTRACTS:
                what = f"{collective} {dtype} {count}"
                same_bits(call(comm, collective, x), call(mpi, collective, x, transport="mpi"), what)
    for count in (1 << 18, (1 << 20) + 7):  # in pieces, and cut differently by ranks
        x = numbers(comm, np.dtype("float32"), count - count % comm.size)
        for collective in CONTRACTS:
            same_bits(call(comm, collective, x), call(mpi, collective, x, transport="mpi"), f"{collective} {count}")
    got = variable(mpi, numbers(comm, np.dtype("int32"), 1000), transport="mpi")
    for a, b in zip(variable(comm, numbers(comm, np.dtype("int32"), 1000)), got, strict=True):
        same_bits(a, b, "v-variant")
    pair = np.zeros(70001)
    mpi.sendrecv(np.full(70001, comm.rank), (comm.rank + 1) % comm.size, pair.astype(int), (comm.rank - 1) % comm.size,
                 transport="mpi")  # fmt: skip
    longest = np.add.reduce([np.arange(5) * r for r in range(comm.size)])
    swapped = mpi.allreduce(np.arange(5) * comm.rank, lambda a, b: a + b, transport="mpi")
    assert (swapped == longest).all(), "a function as op"
    comm.close()


def waiting() -> None:
    """A rank that waits over mpi for long takes no core."""
    comm = hocket.init(transport="mpi")
    comm.barrier()
    before = time.process_time()
    if comm.rank == 0:
        time.sleep(0.8)
    comm.barrier()
    taken = time.process_time() - before
    assert taken < 0.3 * pace(), f"{taken:.2f} s of processor time in 0.8 s of waiting"
    comm.close()


def lost() -> None:
    """A rank that is killed is named by the others."""
    comm = hocket.init(transport="mpi")
    try:  # the first call too: another rank may still be in it when rank 1 is through
        comm.allreduce(np.ones(10))
        if comm.rank == 1:
            os.kill(os.getpid(), 9)
        for _ in range(1000):
            comm.allreduce(np.ones(1 << 18), timeout=20)
    except hocket.PeerLostError as error:
        assert 1 in error.ranks and "rank 1" in str(error), error
    else:
        raise AssertionError("nobody noticed")
    comm.close()
    with open(os.path.join(sys.argv[2], f"fine{comm.rank}"), "w"):  # a launcher may lose what is printed now
        os._exit(0)  # MPI_Finalize waits for those who are gone


def finalized() -> None:
    """MPI_Finalize before close: calls over MPI are refused, nothing crashes or hangs."""
    from mpi4py import MPI

    comm, near = hocket.init(transport="mpi"), hocket.from_mpi(MPI.COMM_WORLD)
    x = np.full(1 << 17, comm.rank + 1.0)
    comm.allreduce(x)
    near.allreduce(x, algorithm="mpi")
    MPI.Finalize()
    assert near.allgather(np.array([near.rank])).tolist() == list(range(near.size)), "shared memory needs no MPI"
    for refused in (lambda: near.allreduce(x, algorithm="mpi"), lambda: comm.allreduce(x, timeout=5)):
        try:
            refused()
        except hocket.Error as error:
            assert "inaliz" in str(error) or isinstance(error, hocket.PeerLostError), error
        else:
            raise AssertionError("a call over MPI after MPI_Finalize")
    with contextlib.suppress(hocket.Error):
        near.close()
    comm.close()
    try:
        hocket.from_mpi(MPI.COMM_WORLD)
    except hocket.ArgumentError as error:
        assert "finalized" in str(error)


# --- communicators


def communicators() -> None:
    """from_mpi on the world, on a part of it, and on a grid."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    half, grid = world.Split(world.rank % 2, -world.rank), world.Create_cart([world.size], reorder=False)
    for comm in (world, half, grid, MPI.COMM_SELF):
        for transport in (None, "mpi"):
            ours = hocket.from_mpi(comm, transport=transport)
            assert (ours.rank, ours.size) == (comm.rank, comm.size)
            assert ours.allgather(np.array([world.rank])).tolist() == comm.allgather(world.rank)
            assert ours.allreduce(np.ones(3), algorithm="mpi").tolist() == [comm.size] * 3
            part = ours.split(0, -ours.rank)
            assert part is not None
            assert part.allgather(np.array([ours.rank]), algorithm="mpi").tolist() == [*range(ours.size)][::-1]
            ours.close()
    for wrong, word in ((MPI.COMM_NULL, "COMM_NULL"), ("world", "not an mpi4py communicator")):
        try:
            hocket.from_mpi(wrong)
        except hocket.ArgumentError as error:
            assert word in str(error), error
        else:
            raise AssertionError(wrong)
    inter = half.Create_intercomm(0, world, _other_leader(world), 3)
    try:
        hocket.from_mpi(inter)
    except hocket.ArgumentError as error:
        assert "intercommunicator" in str(error)
    else:
        raise AssertionError("an intercommunicator")


def _other_leader(world: Any) -> int:
    """The first rank of the other half: halves are ordered downwards."""
    return max(r for r in range(world.size) if r % 2 != world.rank % 2)


def late() -> None:
    """A rank that does not come to from_mpi is waited for, not for ever."""
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank:
        start, before = time.monotonic(), time.process_time()
        try:
            hocket.from_mpi(MPI.COMM_WORLD, timeout=0.5)
        except hocket.TimeoutError:
            assert time.monotonic() - start < 20 and time.process_time() - before < 0.4
        else:
            raise AssertionError("it did not wait")
        print("fine late", flush=True)
        Path(sys.argv[2]).touch()
    else:
        while not os.path.exists(sys.argv[2]):
            time.sleep(0.01)
    os._exit(0)


# --- the library's own collectives


def library() -> None:
    """algorithm="mpi" for every collective: the same exact numbers as by the schedules; also asynchronous, in place."""
    comm = hocket.init()
    for name in ("bool", "int8", "uint64", "float32", "float64", "complex128"):
        for count in (comm.size, 5000 * comm.size):
            x = numbers(comm, np.dtype(name), count)
            usual = ("sum", "max") if "int" in name else ("sum", "prod")
            ops = ("lor", "band", "max", "sum") if name == "bool" else usual
            for collective in sorted(REDUCING):
                for op in ops:
                    what = f"{collective} {name} {count} {op}"
                    same_bits(call(comm, collective, x, op=op), call(comm, collective, x, op=op, algorithm="mpi"), what)
    for dtype in dtypes():
        for collective in MOVING:
            x = numbers(comm, dtype, 12 * comm.size)
            same_bits(call(comm, collective, x), call(comm, collective, x, algorithm="mpi"), f"{collective} {dtype}")
    x = numbers(comm, np.dtype("int32"), 1000)
    for a, b in zip(variable(comm, x), variable(comm, x, algorithm="mpi"), strict=True):
        same_bits(a, b, "v-variant")
    works = [comm.allreduce(np.full(5, i + comm.rank), async_op=True, algorithm="mpi") for i in range(8)]
    assert [w.result()[0] for w in works] == [comm.size * i + sum(range(comm.size)) for i in range(8)]
    out = np.zeros(3)
    assert (comm.allreduce(np.ones(3), "avg", out, algorithm="mpi") == 1).all() and out is not None
    whole = np.zeros(4 * comm.size)
    mine = whole[4 * comm.rank : 4 * comm.rank + 4]
    mine[:] = comm.rank
    comm.allgather(mine, whole, algorithm="mpi")
    assert (whole.reshape(-1, 4) == np.arange(comm.size)[:, None]).all(), "allgather in place"
    own = whole[4 * comm.rank : 4 * comm.rank + 4]
    comm.reduce_scatter(whole, out=own, algorithm="mpi")
    assert (own == comm.size * comm.rank).all(), "reduce_scatter into its own block"
    comm.barrier(algorithm="mpi")
    refusals: list[tuple[Callable[[], object], str]] = [
        (lambda: comm.allreduce(np.ones(3, np.float16), algorithm="mpi"), "float16"),
        (lambda: comm.allreduce(np.ones(3), lambda a, b: a + b, algorithm="mpi"), "function"),
        (lambda: comm.allreduce(np.ones(3), order="rank", algorithm="mpi"), "rank order"),
        (lambda: comm.reduce(np.ones(3), op="min", algorithm="mpi"), "MPI's min of float64 loses a NaN"),
        (lambda: comm.allreduce(np.zeros(2, PAIR), "maxloc", algorithm="mpi"), "maxloc of float32_int32 loses a NaN"),
    ]
    for refused, word in refusals:
        try:
            refused()
        except hocket.ArgumentError as error:
            assert word in str(error), error
        else:
            raise AssertionError(word)
    found = comm.tune(["allreduce"], [8, 65536], seconds=0.3)
    assert all("mpi" in point.seconds for point in found.points), "the tuner measures it"
    assert "mpi: measured" in comm.explain("allreduce", 65536)
    comm.close()


def nans() -> None:
    """Min and max of floats are ours, whatever the setting says: a NaN comes to all ranks.  So are exact sums.
    Integers are MPI's."""
    usual = init.config()
    init._config = dataclasses.replace(usual, algorithm="mpi")  # as HOCKET_ALGORITHM says
    comm = hocket.init()
    init._config = usual
    x = np.array([1.0, comm.rank], np.float32)
    x[0] = np.nan if comm.rank == 1 else 1.0
    for op in NANS:
        got = comm.allreduce(x.copy(), op)
        assert np.isnan(got[0]) and got[1] == (0 if op == "min" else comm.size - 1), (op, got)
        pair = np.zeros(1, PAIR)
        pair["value"], pair["index"] = x[0], comm.rank
        assert np.isnan(comm.allreduce(pair, op + "loc")["value"]), op
    assert comm.allreduce(np.array([(1e20, 1.0, -1e20)[comm.rank]]), order="exact") == 1
    try:
        comm.allreduce(np.ones(1), order="exact", algorithm="mpi")
    except hocket.ArgumentError as why:
        assert "order='exact'" in str(why)
    else:
        raise AssertionError("MPI added")
    assert all(stat.algorithm != "mpi" for stat in comm.stats() if stat.collective == "allreduce")
    assert comm.allreduce(np.full(3, comm.rank), "max")[0] == comm.size - 1
    assert any((stat.collective, stat.algorithm) == ("allreduce", "mpi") for stat in comm.stats())
    comm.close()


def mismatch() -> None:
    """Ranks that call different things do not meet in MPI: our error names them."""
    comm = hocket.init()
    comm.allreduce(np.ones(3), algorithm="mpi")
    part = comm.dup()
    try:
        if comm.rank == 1:
            part.broadcast(np.ones(4), algorithm="mpi", timeout=60)
        else:
            part.allreduce(np.ones(3), algorithm="mpi", timeout=60)
    except hocket.MismatchError as error:
        assert "broadcast(float64[4]" in str(error) and "allreduce(float64[3]" in str(error), error
    else:
        raise AssertionError("not noticed")
    late_one = comm.dup()
    late_one.allreduce(np.ones(3), algorithm="mpi")
    if comm.rank == 1:  # it comes when the others have given it up
        for other in (0, 2):
            comm.recv(np.empty(1), other)
    try:
        late_one.allreduce(np.ones(3), algorithm="mpi", timeout=0.3 if comm.rank == 1 else 3)
    except hocket.TimeoutError as error:
        assert comm.rank == 1 or "waiting for rank 1" in str(error), error
    if comm.rank != 1:
        comm.send(np.ones(1), 1)
    comm.close()


# --- thread levels


def levels() -> None:
    """Whatever level MPI was started with: blocking and asynchronous calls, over the transport and by the library."""
    comm = hocket.init(transport="mpi")
    level = comm.world.mpi.level
    assert level == os.environ.get("MPI4PY_RC_THREAD_LEVEL", "multiple"), level
    other = comm.dup()
    for way in ({}, {"algorithm": "mpi"}):
        big = [c.allreduce(np.full(1 << 17, i + 1.0), async_op=True, **way) for i in range(3) for c in (comm, other)]
        assert [w.result()[0] for w in big] == [comm.size * (i + 1.0) for i in range(3) for c in (comm, other)]
        work = comm.allreduce(np.ones(1 << 16), async_op=True, **way)
        deadline = time.monotonic() + 20
        while not work.done():
            assert time.monotonic() < deadline, "done() does not bring it forward"
        assert comm.allreduce(np.ones(3), **way).tolist() == [comm.size] * 3
    assert _awaited(comm) == comm.size
    said: list[str] = []

    def elsewhere() -> None:
        try:
            said.append(str(comm.allgather(np.array([comm.rank])).tolist()))
        except hocket.ArgumentError as error:
            said.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(30)
    main_only = level in ("single", "funneled")
    assert said and ("only one thread" in said[0]) == main_only, said
    comm.close()


def _awaited(comm: Communicator) -> float:
    import asyncio

    async def all_of() -> float:
        return float((await comm.allreduce(np.ones(3), async_op=True))[0])

    return asyncio.run(all_of())


def fallback() -> None:
    """mpi4py has another MPI than the launcher: the ranks meet as they do without it, and the log says why."""
    comm = hocket.init()
    assert comm.size == 2 and comm.world.mpi is None
    assert comm.allreduce(np.ones(2)).tolist() == [2, 2]
    try:
        comm.allreduce(np.ones(2), algorithm="mpi")
    except hocket.ArgumentError as error:
        assert "not an MPI job" in str(error)
    else:
        raise AssertionError("there is not an MPI job")
    comm.close()


if __name__ == "__main__":
    for name in sys.argv[1].split(","):
        globals()[name]()
        print(f"fine {name}", flush=True)
