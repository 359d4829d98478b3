"""Functions of the user's own as ops, and premul_sum, on GPU arrays: the bits of the same call on NumPy arrays.

All of it runs in the ranks.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.algorithms.language import registry
from hocket.collectives.arrays import staging
from hocket.collectives.gpu.stream_ops import StreamOps
from hocket.errors import ArgumentError
from hocket.extending import REDUCING
from hocket.kernels.gpu import catalogue as kernels
from hocket.kernels.gpu import launch
from hocket.system.cuda import driver, nvrtc
from support.gpu import beside_numpy as gpu_oracle
from support.gpu import ranks as gpu_ranks
from support.gpu.arrays import GpuArray, put
from support.gpu.beside_numpy import Array, same, values
from support.gpu.streams import Late

AFFINE = np.dtype([("a", np.int64), ("b", np.int64)])
THREE = np.dtype("V3")


def compose(f: Array, g: Array) -> Array:
    """x -> g(f(x)) for affine maps a x + b: associative, not commutative."""
    out = np.empty_like(f)
    out["a"], out["b"] = f["a"] * g["a"], f["b"] * g["a"] + g["b"]
    return out


def twice_less(a: Array, b: Array) -> Array:
    """Not even associative."""
    return (a + a - b).astype(a.dtype)


def by_host(function: Callable[[Array, Array], Array]) -> Callable[[Any, Any], GpuArray]:
    """`function` for arrays on a GPU: they are copied to the host and back, in the order of their stream."""

    def on_gpu(a: Any, b: Any) -> GpuArray:
        out = GpuArray(a.shape, a.dtype, a.device.id, a.stream)
        out.set(function(read(a), read(b)))
        return out

    return on_gpu


def read(lent: Any) -> Array:
    interface = lent.__cuda_array_interface__
    array = GpuArray.__new__(GpuArray)
    nbytes = interface["shape"][0] * lent.dtype.itemsize
    vars(array).update(address=interface["data"][0], shape=interface["shape"], dtype=lent.dtype, nbytes=nbytes,
                       stream=interface["stream"] or 0, gpu=driver.device(lent.device.id), owner=lent)  # fmt: skip
    return array.get()


class Launched:
    """`twice_less` of float32 by kernels: nobody waits for the GPU."""

    def __init__(self) -> None:
        self.at = StreamOps(driver.device(0))
        self.kept: list[GpuArray] = []  # to free one waits for all streams

    def __call__(self, a: Any, b: Any) -> GpuArray:
        out, less = GpuArray(a.shape, a.dtype, stream=a.stream), GpuArray(a.shape, a.dtype, stream=a.stream)
        count = a.shape[0]
        self.launch(kernels.scale("float32"), a.stream, count, out.address, a.address, count, 2)
        self.launch(kernels.scale("float32"), a.stream, count, less.address, b.address, count, -1)
        both = launch.pointers([out.address, less.address])
        self.launch(kernels.reduce("float32", "sum"), a.stream, count, both, out.address, count, 2)
        self.kept += out, less
        return out

    def launch(self, kernel: kernels.Kernel, stream: int, count: int, *values: Any) -> None:
        grid, block = launch.geometry(4 * count, 1)
        given, kept = launch.arguments(kernel, *values)
        function = ctypes.c_void_p(self.at.function(kernel))
        place = grid, 1, 1, block, 1, 1, 0, ctypes.c_void_p(stream)
        assert gpu_ranks.driver().cuLaunchKernel(function, *place, given, None) == 0

    def close(self) -> None:
        self.kept.clear()
        self.at.close()


def check(comm: Any, collective: str, x: Array, function: Any, on_gpu: Any = None, **how: Any) -> None:
    what = f"{collective} of {x.dtype}[{x.size}] {how} on rank {comm.rank} of {comm.size}"
    host, device = x.copy(), put(x)
    want = getattr(comm, collective)(host, op=function, **how)
    got = getattr(comm, collective)(device, op=on_gpu or by_host(function), **how)
    same(got, want, what)
    same(device, host, f"x after {what}")


def in_rank_order(collective: str, size: int) -> list[str]:
    names = gpu_oracle.algorithms(collective, size)
    return [name for name in names if registry.get(collective, name).order == "rank"]


def by_every_algorithm(comm: Any) -> None:
    """The order and the grouping of the operands are those of the host."""
    launched = Launched()
    for collective in sorted(REDUCING):
        for turn, name in enumerate(in_rank_order(collective, comm.size)):
            root = {"root": turn % comm.size} if collective == "reduce" else {}
            for count in (0, 1, 70_003):
                x = gpu_oracle.of(comm, collective, count)
                check(comm, collective, x, twice_less, launched, algorithm=name, **root)
    launched.close()


def of_every_kind(comm: Any) -> None:
    """By whatever is chosen: elements of any structure, and those that NumPy borrows."""
    for count in (5, 4099):
        flat = np.random.default_rng((comm.rank, count)).integers(-3, 4, 2 * count)
        for collective in ("allreduce", "scan", "exscan", "reduce"):
            check(comm, collective, flat.view(AFFINE), compose)
        check(comm, "allreduce", values(comm.rank, count, "int32"), np.maximum)
        check(comm, "allreduce", values(comm.rank, count, "bfloat16"), np.maximum)


def refusing(text: str, options: Any, arch: int, name: str) -> Any:
    raise hocket.Error("no such thing")


def expressions(comm: Any) -> None:
    """Expressions reduce like built-in ops in the element's own type, in rank order."""
    on_host = {"float32": twice_less, "bfloat16": np.maximum, "bool": np.logical_or}
    for dtype, text in gpu_oracle.EXPRESSIONS.items():
        for collective, name, count in (("allreduce", "tree", 4099), ("allreduce", "direct", 4099),
                                        ("scan", "linear", 4099), ("allreduce", "tree", 1)):  # fmt: skip
            x = values(comm.rank, count, "int8") > 0 if dtype == "bool" else values(comm.rank, count, dtype)
            check(comm, collective, x, on_host[dtype], hocket.expression(text), algorithm=name)
    greater = hocket.expression("a > b ? a : b", commutative=True)
    check(comm, "allreduce", values(comm.rank, 4099, "bfloat16"), np.maximum, greater)
    x = put(values(comm.rank, 4099, "bfloat16"))
    got = comm.allreduce(x, greater, algorithm="ring")
    want = comm.allreduce(values(comm.rank, 4099, "bfloat16"), "max")
    same(got, want, "the greatest, by the ring")
    with pytest.raises(ArgumentError, match="rank order"):  # though the plan is at hand
        comm.allreduce(x, hocket.expression("a > b ? a : b"), algorithm="ring")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvrtc, "compile", refusing)
        with pytest.raises(hocket.Error, match=r"expression\('a \+'\): no such thing"):
            comm.allreduce(x, hocket.expression("a +"))
    for wrong, words in (
        ({"x": np.ones(3)}, "these arrays are in host memory"), ({"x": x, "transport": "shm"}, "another transport"),
        ({"x": put(np.ones(3, np.complex64))}, "got complex64"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=words):
            comm.allreduce(**wrong, op=greater)


def what_is_given_back(comm: Any) -> None:
    """The function returns one of its arguments; a slot holds no whole number of elements, and x fills two and more."""
    count = (9 << 20) // 3
    given = [np.random.default_rng((r, 3)).integers(0, 256, 3 * count).astype(np.uint8).view(THREE) for r in (0, 1)]
    x = given[comm.rank % 2]
    last = given[(comm.size - 1) % 2]
    pieces = []

    def second(a: Any, b: Any) -> Any:
        pieces.append(b.shape)
        return b

    same(comm.allreduce(put(x), lambda a, b: a, algorithm="tree"), given[0], "the first")
    same(comm.allreduce(put(x), second, algorithm="tree"), last, "the last")
    assert len(pieces) <= 3 * comm.size, f"{len(pieces)} pieces of three slots"


def in_stream_order(comm: Any) -> None:
    """The values reach x by its stream long after the call, and the function is called in the call's stream."""
    stream = driver.device(0).stream()
    launched, streams = Launched(), set()

    def noting(a: Any, b: Any) -> GpuArray:
        streams.add(a.stream)
        return launched(a, b)

    for count in (5, 300_001):
        given = [values(r, count, "float32") for r in range(comm.size)]
        want = comm.allreduce(given[comm.rank].copy(), twice_less, algorithm="direct")
        for _ in range(3):
            late = Late(given[comm.rank], stream)
            comm.allreduce(late.array, noting, algorithm="direct")
            same(late.array, want, f"{count} elements, late")
        assert streams == {stream}, streams
        late = [Late(given[comm.rank], stream) for _ in range(3)]
        works = [comm.allreduce(each.array, noting, algorithm="direct", async_op=True) for each in late]
        for work, each in reversed(list(zip(works, late, strict=True))):
            work.wait()
            same(each.array, want, f"{count} elements, asynchronous")
        assert len(streams) == 2, streams
        streams.clear()
    launched.close()
    driver.device(0).end_stream(stream)


def premultiplied(comm: Any) -> None:
    """The factor is this rank's own; x is left as it is, unless the call is in place."""
    op = hocket.premul_sum(0.1 * (comm.rank + 1))
    for dtype in ("float32", "bfloat16", "int32"):
        for collective in sorted(REDUCING):
            for count in (0, 5, 4099):
                x = gpu_oracle.of(comm, collective, count, dtype)
                gpu_oracle.check(comm, collective, x, op=op, order="rank")
                gpu_oracle.check(comm, collective, x, op=op, order="rank", out=count)
    given = [values(r, 70_003, "float32") for r in range(comm.size)]
    want = comm.allreduce(given[comm.rank].copy(), op, algorithm="ring")
    stream = driver.device(0).stream()
    late = [Late(given[comm.rank], stream) for _ in range(2)]
    out = GpuArray(70_003, np.float32, stream=stream)
    comm.allreduce(late[0].array, op, algorithm="ring", out=out)
    work = comm.allreduce(late[1].array, op, algorithm="ring", async_op=True)
    same(out, want, "the sum of late ones")
    work.wait()
    same(late[1].array, want, "in place, asynchronous")
    same(late[0].array, given[comm.rank], "x")
    del late, work
    driver.device(0).end_stream(stream)


def through_host_memory(comm: Any) -> None:
    """Where it must be, the function is called with arrays on the GPU all the same."""
    for dtype, function in ((np.float32, twice_less), (AFFINE, compose)):
        x = np.random.default_rng(comm.rank).integers(-3, 4, 2 * 1003).astype(np.int64).view(AFFINE)
        x = x["a"].astype(dtype) if dtype is np.float32 else x
        check(comm, "allreduce", x, function, transport="shm", algorithm="tree")
        check(comm, "scan", x, function, transport="shm", algorithm="linear")


def everything(comm: Any) -> None:
    through_host_memory(comm)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "to_host", None)  # whatever is staged fails
        for part in (by_every_algorithm, of_every_kind, expressions, what_is_given_back, in_stream_order):
            part(comm)
            comm.barrier()
        premultiplied(comm)


WRONG = {
    "shape": (lambda a, b: put(read(a)[:-1]), ArgumentError, "like its two arguments"),
    "dtype": (lambda a, b: put(read(a).astype(np.float64)), ArgumentError, "op returned float64["),
    "host": (lambda a, b: read(a), ArgumentError, "op returned an array in host memory; its arguments are on GPU 0"),
    "nothing": (lambda a, b: None, ArgumentError, "the result of op is None"),
    "raises": (lambda a, b: 1 // 0, ZeroDivisionError, "by zero"),
}  # fmt: skip


def that_fail(world: Any) -> None:
    """The rank whose function fails raises its own error, the others hocket.Error; blocking and asynchronous."""
    good = by_host(np.add)
    for number, (name, (bad, kind, words)) in enumerate(WRONG.items()):
        comm = world.dup()
        x = put(np.ones(1000, np.float32))
        comm.allreduce(x, good)
        mine = bad if comm.rank == 1 else good

        def op(a: Any, b: Any, mine: Any = mine) -> Any:  # one function on all ranks
            return mine(a, b)

        raised: Any = None
        try:
            work = comm.allreduce(x, op, algorithm="direct", async_op=number % 2 == 1)
            if number % 2:
                work.wait()
            comm.barrier()
        except (hocket.Error, ZeroDivisionError) as error:
            raised = error
        if comm.rank == 1 or comm.size == 1:
            assert type(raised) is kind and words in str(raised), (name, raised)
        else:
            assert type(raised) is hocket.Error and kind.__name__ in str(raised), (name, raised)
        comm.close()
