"""GPU arrays of kinds that say less than CuPy's and torch's, and streams that callers name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from support.dlpack_only import InMemory
from support.gpu import ranks as gpu_ranks

BARE = """
class Bare:
    "As little as an array may be: it does not say on which GPU it is."
    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype
    @property
    def __cuda_array_interface__(self):
        told = self.array.__cuda_array_interface__
        return told if self.array.nbytes else {**told, "data": (0, False)}
with alone() as comm:
    for gpu in range(cuda.count()):
        within = comm.dup()
        whole = GpuArray(5, np.float32, gpu)
        mine = Bare(put(np.full(5 * comm.rank, 7, np.float32), gpu))
        with cuda.device(gpu):
            within.allgatherv(mine, [0, 5], out=Bare(whole))
        assert (whole.get() == 7).all() and within.gpus.why_staged == ""
        within.close()
    del whole, mine
"""


def test_arrays_without_a_device_and_without_elements(built: Path, tmp_path: Path) -> None:
    """They are on the GPU that the caller works on, as the others' are: not in host memory, alone."""
    gpu_ranks.run(built, 2, BARE, tmp_path, devices=2)


DLPACK = """
from support.dlpack_only import OnGpu
def refused(what, call, *args):
    try:
        call(*args)
    except hocket.ArgumentError as error:
        assert what in str(error), error
    else:
        raise AssertionError(what)
with alone() as comm:
    stream = cuda.device(0).stream()
    x = put(np.full((3, 500), comm.rank + 1, np.float32))
    only = OnGpu(x)
    assert comm.allreduce(only) is only and only.streams == [1]
    assert (x.get() == 3).all()
    for version in (0, 1):
        only = OnGpu(x, version)
        out = put(np.zeros(3000, np.float32))
        with hocket.on_stream(stream):
            comm.allgather(only, out=OnGpu(out))
        cuda.device(0).synchronize(stream)
        assert only.streams == [stream] and (out.get() == 3).all()
        y, into = OnGpu(put(np.ones(5, np.float32)), version), put(np.zeros(5, np.float32))
        comm.sendrecv(y, 1 - comm.rank, OnGpu(into), 1 - comm.rank)  # through host memory
        assert (into.get() == 1).all()
    refused("read-only", comm.allreduce, OnGpu(x, version=0))
    refused("read-only", comm.sendrecv, x, 1 - comm.rank, OnGpu(into, version=0), 1 - comm.rank)
    for what, odd in (("read-only", {"read_only": True}), ("DLPack 2; hocket reads DLPack 1", {"version": 2}),
                      ("2 lanes", {"lanes": 2}), ("device of DLPack's type 7", {"kind": 7}),
                      ("not C-contiguous", {"strides": (1, 3)})):
        refused(what, comm.allreduce, OnGpu(x, **odd))
    comm.allreduce(OnGpu(x, strides=(500, 1)))
    refused("pass out=", comm.allgather, only)
    refused("hocket cannot make a", comm.allreduce, only, lambda a, b: a)
    assert comm.gpus.why_staged == ""
    cuda.device(0).end_stream(stream)
    del x, y, into, out, only
"""

NAMED = """
from support.gpu.streams import Late, right
class Protocol:
    def __init__(self, address, version=0):
        self.told = version, address
    def __cuda_stream__(self):
        return self.told
with alone() as comm:
    device = cuda.device(0)
    stream = device.stream()
    for named in (stream, Protocol(stream)):
        for apart in (False, True):
            late = Late(np.full(3001, comm.rank + 1, np.float32), stream)
            late.array.stream = 0  # the array does not say so
            with hocket.on_stream(0), hocket.on_stream(named):
                work = comm.allreduce(late.array, async_op=apart)
                if apart:
                    work.wait()
            late.array.stream = stream
            right(late.array, np.full(3001, 3, np.float32), f"{named}, {apart}")
    for wrong in (-1, "s", True, Protocol(5, version=1), None):
        try:
            with hocket.on_stream(wrong):
                raise AssertionError(wrong)
        except hocket.ArgumentError:
            pass
    device.end_stream(stream)
    del late, work
"""


def test_arrays_that_offer_dlpack_alone(built: Path, tmp_path: Path) -> None:
    gpu_ranks.run(built, 2, DLPACK, tmp_path, delay=60)


def test_streams_that_are_named(built: Path, tmp_path: Path) -> None:
    """Blocking calls and asynchronous ones, whose arrays do not say that their values come by that stream."""
    gpu_ranks.run(built, 2, NAMED, tmp_path, delay=2000)


def test_dlpack_of_host_memory() -> None:
    def body(comm: hocket.Communicator) -> None:
        for dtype in ("bool", "int8", "uint64", "float16", "float64", "complex64"):
            x = np.ones((3, 5), dtype)
            only = InMemory(x)
            assert comm.broadcast(only) is only
        comm.allreduce(only)
        assert (x == 2).all()
        with pytest.raises(hocket.ArgumentError, match="not C-contiguous"):
            comm.broadcast(InMemory(x.T))
        before = np.full(5, comm.rank + 1.0)
        old, fixed = InMemory(before, old=True), np.ones(5)
        fixed.flags.writeable = False
        assert (comm.allreduce(old, out=np.zeros(5)) == 3).all() and (comm.allgather(old)[0] == 1).all()
        other = 1 - comm.rank
        in_place: list[Callable[[Any], Any]] = [
            comm.allreduce, lambda x: comm.broadcast(x, other), comm.scan, comm.exscan, lambda x: comm.allreduce([x]),
            lambda x: comm.allgather(before, out=x), lambda x: comm.sendrecv(before, other, x, other),
            lambda x: comm.allreduce(x, async_op=True), lambda x: comm.recv(x, other),
            lambda x: comm.prepare("allreduce", x)(),
        ]  # fmt: skip
        for call in in_place:
            for given in (old, InMemory(fixed)):
                with pytest.raises(hocket.ArgumentError, match="read-only"):
                    call(given)
        assert (before == comm.rank + 1).all() and (fixed == 1).all()

    hocket.local_world(2).run(body)


def test_tensors_of_others_that_look_like_torchs() -> None:
    """Paddle's have a data_ptr and DLPack; one that wants a gradient keeps its memory.  MindSpore's have no DLPack."""

    class Tensor(InMemory):
        __dlpack_c_exchange_api__ = None

        def data_ptr(self) -> int:
            raise AssertionError("it was taken for torch's")

    class Training(Tensor):
        def __dlpack__(self, **how: Any) -> Any:
            raise BufferError("it requires gradients: use detach()")

    class OfMindSpore:
        data_ptr = Tensor.data_ptr

        def asnumpy(self) -> Any:
            return np.ones(3)

    def body(comm: hocket.Communicator) -> None:
        x = np.ones(3)
        for _ in range(3):  # the quick way is for calls that were made before
            comm.allreduce(Tensor(x))
        assert (x == 8).all()
        with pytest.raises(hocket.ArgumentError, match=r"x does not give its memory away: .* use detach\(\)"):
            comm.allreduce(Training(x))
        with pytest.raises(hocket.ArgumentError, match=r"x is an? .*: pass x\.asnumpy\(\), or a NumPy array"):
            comm.allreduce(OfMindSpore())

    hocket.local_world(2).run(body)
