"""Calls on GPU arrays that were made before: they take the short way, in the stream that the caller works on now."""

from __future__ import annotations

from pathlib import Path

from support.gpu import ranks as gpu_ranks

PROGRAM = """
from hocket.collectives.communicator.runner import Runner
general, made = Runner.general, []
def counted(self, *args):
    made.append(args[2].collective)
    return general(self, *args)
Runner.general = counted
def again(call):
    "What three more such calls give, and how many of them took the general way."
    call()
    made.clear()
    return [call() for _ in range(3)][-1], len(made)
with alone() as comm:
    total = comm.size * (comm.size + 1) / 2
    x, out = put(np.full(1000, comm.rank + 1, np.float32)), put(np.zeros(1000, np.float32))
    assert comm.allreduce(x, out=out).get()[0] == total             # the GPUs are tried here
    assert again(lambda: comm.allreduce(x, out=out).get()[0]) == (total, 0)
    assert again(lambda: comm.allreduce(x, "max", out=out).get()[0]) == (comm.size, 0)
    assert again(lambda: comm.allreduce(x, algorithm="ring", out=out).get()[0]) == (total, 0)
    assert again(lambda: comm.broadcast(x, 0).get()[0]) == (1, 0)
    whole = put(np.zeros(1000 * comm.size, np.float32))
    assert again(lambda: comm.allgather(x, out=whole).get().sum()) == (1000 * comm.size, 0)

    parts = [put(np.full(64, comm.rank + turn, np.float32)) for turn in range(4)]
    comm.allreduce(parts[0])
    made.clear()
    for turn, part in enumerate(parts[1:], 1):                      # another array of the same kind
        assert comm.allreduce(part).get()[0] == comm.size * (comm.size - 1) / 2 + comm.size * turn, turn
    assert not made

    device, late = cuda.device(0), GpuArray(64, np.float32)
    stream = device.stream()
    late.stream, rubbish = stream, np.full(64, 1e6, np.float32)     # ordered in a stream that nobody waits for
    for turn in range(5):
        late.set_later(rubbish)
        host = np.full(64, comm.rank + turn, np.float32)
        late.set_later(host)
        comm.allreduce(late)
        assert late.get()[0] == comm.size * (comm.size - 1) / 2 + comm.size * turn, turn
    assert not made
    late.stream = 0
    with hocket.on_stream(stream):
        comm.allreduce(late)
    assert not made
    device.synchronize(stream)

    host = np.full(1000, 1.0, np.float32)                           # the same dtype and shape in host memory
    assert comm.allreduce(host)[0] == comm.size
    made.clear()
    other = GpuArray(1000, np.float32)
    other.strides = (8,)
    try:
        comm.allreduce(other)
    except hocket.ArgumentError as why:
        assert "not C-contiguous" in str(why), why
    else:
        raise AssertionError("strides were not looked at")
    made.clear()
    gpu_ranks.knob("capturing", stream)
    with hocket.on_stream(stream):
        try:
            comm.allreduce(late)
        except hocket.ArgumentError as why:
            assert "captured" in str(why) and comm.gpus.why_apart, why
        else:
            assert not comm.gpus.why_apart
    assert made, "a call that is captured took the short way"
    gpu_ranks.knob("capturing", 0)
    comm.barrier()
    del x, out, whole, parts, part, late, other
    device.end_stream(stream)
"""


def test_the_second_such_call_takes_the_short_way(built: Path, tmp_path: Path) -> None:
    gpu_ranks.run(built, 2, PROGRAM, tmp_path)


def test_so_do_calls_whose_kernels_meet(built: Path, tmp_path: Path) -> None:
    gpu_ranks.run(built, 2, "os.environ['FAKE_CUDA'] = 'mps=1'\n" + PROGRAM, tmp_path)
