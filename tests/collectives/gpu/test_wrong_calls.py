"""Calls with GPU arrays that differ between ranks, or that cannot be: refused with words."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.gpu import ranks as gpu_ranks
from support.gpu.cases import DELAY, MORE

MISMATCHES = {
    "count": ("comm.allreduce(x)", "comm.allreduce(x.part(0, 999))"),
    "dtype": ("comm.allreduce(x)", "comm.allreduce(put(np.ones(1000, np.int32)))"),
    "op": ("comm.allreduce(x)", "comm.allreduce(x, 'max')"),
    "expression": ("comm.allreduce(x)", "comm.allreduce(x, hocket.expression('a + a - b'))"),
    "codec": ("comm.allreduce(x, codec='int8')", "comm.allreduce(x, codec='fp8')"),
    "no codec": ("comm.allreduce(x, codec='fp16')", "comm.allreduce(x)"),
    "collective": ("comm.allreduce(x)", "comm.broadcast(x)"),
    "asynchronous": ("comm.allreduce(x, async_op=True).wait()", "comm.allreduce(x, 'min', async_op=True).wait()"),
    "the first": ("comm.allreduce(x)", "comm.allreduce(x.get())"),
    "host": ("comm.allreduce(x)", "comm.allreduce(x.get())"),
}
MISMATCH = """
with hocket.init() as world:
    for number, (name, (most, odd)) in enumerate({cases!r}.items()):
        comm = world.dup()
        x = put(np.ones(1000, np.float32))
        if name != "the first":
            comm.allreduce(x)
        began = time.monotonic()
        try:
            eval(odd if comm.rank == number % comm.size else most)
            comm.barrier()
            comm.barrier()
        except hocket.Error as error:
            say(**{{name: [type(error).__name__, str(error), time.monotonic() - began]}})
        comm.close()
    assert world.allreduce(x).get()[0] >= comm.size
"""


@pytest.mark.parametrize("size", [2, MORE])
def test_calls_that_differ(size: int, built: Path, tmp_path: Path) -> None:
    for rank, said in enumerate(gpu_ranks.run(built, size, MISMATCH.format(cases=MISMATCHES), tmp_path, delay=DELAY)):
        for name in MISMATCHES:
            kind, text, took = said[name]
            assert kind == "MismatchError" and "allreduce(float32[1000]" in text and took < 20, (rank, name, said[name])


WRONG = """
with alone() as comm:
    x, stream = put(np.ones(6, np.float32)), cuda.device(0).stream()
    comm.allreduce(x)

    def refused(words, call, *args, **how):
        try:
            call(*args, **how)
        except hocket.ArgumentError as error:
            assert words in str(error), str(error)
        else:
            raise AssertionError(f"nothing said of {{words}}")

    there = GpuArray(6, np.float32, stream=stream)
    gpu_ranks.knob("capturing", stream)
    refused("captured into a CUDA graph", comm.allreduce, there)
    refused("captured into a CUDA graph", comm.allreduce, there, async_op=True)
    comm.allreduce(x)
    gpu_ranks.knob("capturing", 0)
    refused("works on GPU 0; the array is on GPU 1", comm.allreduce, put(np.ones(6, np.float32), 1))
    x.strides = (8,)
    refused("is not C-contiguous", comm.allreduce, x)
    x.strides = None
    x.read_only = True
    refused("read-only", comm.allreduce, x)
    x.read_only = False
    refused("algorithm", comm.allreduce, x, algorithm="none")
    host, words = np.ones(6, np.float32), "residuals must be where x and the result are"
    refused(words, comm.allreduce, x, codec="int8", residual=host)
    refused(words, comm.allreduce, host, codec="int8", residual=(None, x))
    comm.allreduce(x, out=GpuArray(6, np.float32))
    assert (x.get() == comm.size ** 2).all()
    cuda.device(0).end_stream(stream)
    del x, there
"""


def test_what_cannot_be_is_refused(built: Path, tmp_path: Path) -> None:
    gpu_ranks.run(built, 2, WRONG, tmp_path, devices=2)
