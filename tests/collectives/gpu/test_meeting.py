"""Ranks with a GPU each, whose kernels carry out calls together, over the stand-ins for the driver and the compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.gpu import ranks as gpu_ranks
from support.gpu.cases import APART, DELAY, KILLED, MORE, REPEATED, killed_in

ORACLE = """
from support.gpu import beside_numpy as gpu_oracle
with alone() as comm:
    gpu_oracle.by_kernels(comm)
"""


@pytest.mark.parametrize("size", [2, *(pytest.param(n, marks=pytest.mark.gpu) for n in (3, 4, 8))])
def test_kernels_give_the_bits_of_the_host(size: int, built: Path, tmp_path: Path) -> None:
    gpu_ranks.run(built, size, APART + ORACLE, tmp_path, delay=DELAY)


STREAMS = """
from support.gpu import streams as gpu_streams
with alone() as comm:
    gpu_streams.everything(comm)
    assert comm.gpus.why_apart == ""
"""


@pytest.mark.parametrize("size", [2, MORE])
def test_streams_order_what_is_issued(size: int, built: Path, tmp_path: Path) -> None:
    """Kernels of all sizes, and calls without, in one row."""
    gpu_ranks.run(built, size, APART + STREAMS, tmp_path, delay=5 * DELAY)


ISSUED = """
kinds = "launches", "copies", "value_waits", "value_writes"
def issued(function, *args, **how):
    before = [gpu_ranks.count(kind) for kind in kinds]
    function(*args, **how)
    return [gpu_ranks.count(kind) - was for kind, was in zip(kinds, before)]
with alone() as comm:
    x, out = put(np.ones(1 << 18, np.float32)), put(np.zeros(1 << 18, np.float32))
    comm.allreduce(x)
    for _ in range(20):
        for algorithm in ("one_shot", "direct"):
            assert issued(comm.allreduce, x.part(0, 2048), algorithm=algorithm) == [1, 0, 0, 0]
        assert issued(comm.reduce_scatter, x, out=out.part(0, (1 << 18) // comm.size)) == [1, 0, 0, 0]
        assert issued(comm.allgather, x.part(0, 8), out=out.part(0, 8 * comm.size)) == [1, 0, 0, 0]
    assert issued(comm.allreduce, x, "avg") == [2, 0, 0, 0]
    longer = put(np.ones((1 << 18) + 1, np.float32))
    assert issued(comm.allreduce, longer)[1:] != [0, 0, 0]
    assert issued(comm.broadcast, x)[1:] != [0, 0, 0]
    assert issued(comm.allreduce, x, algorithm="ring")[1:] != [0, 0, 0]
    told = comm.explain()
    assert "up to 1 MiB of each rank's x in one kernel of each" in told, told
    del x, out, longer
"""


TOGETHER = "os.environ['FAKE_CUDA'] = 'mps=1,first_device=%d' % (int(os.environ['HOCKET_RANK']) // 2)\n"


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.gpu)])
def test_kernels_meet_on_one_gpu_where_processes_run_side_by_side(size: int, built: Path, tmp_path: Path) -> None:
    gpu_ranks.run(built, size, TOGETHER + ORACLE, tmp_path, delay=DELAY)


def test_a_call_is_one_launch(built: Path, tmp_path: Path) -> None:
    gpu_ranks.run(built, 2, APART + ISSUED, tmp_path)


WHY = """
{before}
with alone() as comm:
    x = put(np.ones(1000, np.float32))
    comm.allreduce(x)
    assert comm.allreduce(x).get()[0] == comm.size ** 2 and comm.gpus.why_staged == ""
    say(why=comm.gpus.why_apart, told=comm.explain(), events=comm.gpus.why_events)
    del x
"""
ONE = "if os.environ['HOCKET_RANK'] == '1': "
BESIDE = "os.environ['FAKE_CUDA'] = 'first_device=%d' % (int(os.environ['HOCKET_RANK']) // 2)"


@pytest.mark.parametrize(
    ("size", "before", "why"),
    [
        (3, BESIDE, "ranks 0, 1 share a GPU"),
        (2, APART + ONE + "os.environ['HOCKET_GPU_SYNC'] = 'words'", "rank 1: HOCKET_GPU_SYNC asks for words"),
        (2, APART + ONE + "cuda.library(), gpu_ranks.refuse('cuLaunchKernel', 1, 700)", "rank 1: a kernel that meets"),
        (2, APART + ONE + "cuda.library(), gpu_ranks.refuse('cuMemHostAlloc', 1, 2)", "rank 1: 8 bytes of pinned"),
    ],
)  # fmt: skip
def test_why_kernels_do_not_meet(size: int, before: str, why: str, built: Path, tmp_path: Path) -> None:
    """The same on all ranks, and said; calls go on as on one GPU."""
    for said in gpu_ranks.run(built, size, WHY.format(before=before), tmp_path):
        assert why in said["why"] and not said["events"], said
        assert f"no kernels that meet: {said['why']}" in said["told"], said


ONE_IS_LATE = """
with hocket.init() as comm:
    x = put(np.ones(1000, np.float32))
    comm.allreduce(x)
    if comm.rank == 1:
        gpu_ranks.knob("delay", 500_000)
        host = np.ones(1000, np.float32)
        for _ in range(10):
            x.set_later(host)
"""
"""Rank 1's GPU has much to do before the next call."""
LATE = """
    work = comm.allreduce(x, timeout=1, async_op={apart})
    if {apart}:
        work.wait()
    time.sleep(2)
    with telling():
        comm.allreduce(x)
    gpu_ranks.knob("delay", 0)
    del x
"""


@pytest.mark.parametrize("apart", [pytest.param(False, marks=pytest.mark.gpu), True], ids=["blocking", "asynchronous"])
def test_a_gpu_that_is_late(apart: bool, built: Path, tmp_path: Path) -> None:
    """A kernel that waits for it gives up, and the next call says so, on all ranks."""
    ends = gpu_ranks.run(built, 2, APART + ONE_IS_LATE + LATE.format(apart=apart), tmp_path)
    assert ends[0]["error"] == "TransportError" and ends[1]["error"] == "PeerLostError", ends
    told = "the result of an earlier call: its kernel waited for that of rank 1, which did not come in time"
    assert all(told in said["text"] for said in ends)


LATE_AT_LAST = """
    comm.allreduce(x, timeout=0.2)
"""


@pytest.mark.gpu
def test_a_gpu_that_is_late_in_the_last_call(built: Path, tmp_path: Path) -> None:
    """Then closing says so, where the result is wrong."""
    with gpu_ranks.job(built, 2, APART + ONE_IS_LATE + LATE_AT_LAST, tmp_path) as job:
        ends = job.wait(40)
    assert [end.code for end in ends] == [0, 0], ends
    assert "at close: the result of an earlier call is wrong: its kernel waited for that of rank 1" in ends[0].err, ends
    assert not ends[1].err, ends


CLOSED = """
    comm.allreduce(x)
    if comm.rank == 0:
        comm.allreduce(x, async_op=True)
        comm.close(timeout=0.2)
"""


@pytest.mark.gpu
@pytest.mark.parametrize("memops", [1, 0], ids=["words", "events"])
def test_closing_in_a_hurry(memops: int, built: Path, tmp_path: Path) -> None:
    """No peer's memory is let go of while a kernel may use it, whatever the marks are."""
    gpu_ranks.run(built, 2, APART + ONE_IS_LATE + CLOSED, tmp_path, memops=memops)


ENDS = """
comm.close()
del xs
say(at_end=time.monotonic(), misuses=gpu_ranks.count("misuses"))
"""


@pytest.mark.parametrize(("size", "closes"), [(2, True), (3, False)])
def test_a_rank_is_killed(size: int, closes: bool, built: Path, tmp_path: Path) -> None:
    """Kernels that wait for its own give up, long before their time is over."""
    after = ENDS if closes else "os._exit(0)"
    source = KILLED.format(before=APART, count=1000, call=REPEATED["asynchronous"], pause=0.02, after=after)
    killed_in(source, size, 2000, built, tmp_path, closes)


DIFFERENT = """
with hocket.init() as world:
    for odd in (lambda comm, x: comm.allreduce(x, "max"), lambda comm, x: comm.allreduce(x.part(0, 999)),
                lambda comm, x: comm.allreduce(x, algorithm="direct"), lambda comm, x: comm.reduce_scatter(x)):
        comm = world.dup()
        x = put(np.ones(1000, np.float32))
        comm.allreduce(x)
        try:
            odd(comm, x) if comm.rank else comm.allreduce(x)
            comm.barrier()
            comm.barrier()
        except hocket.MismatchError as error:
            assert "float32[1000]" in str(error) or "float32[999]" in str(error), error
        else:
            raise AssertionError("calls that differ were carried out")
        comm.close()
    say(done=True)
"""


def test_calls_that_differ(built: Path, tmp_path: Path) -> None:
    """No kernel is launched: the hosts do not meet."""
    gpu_ranks.run(built, 2, APART + DIFFERENT, tmp_path, delay=DELAY)
