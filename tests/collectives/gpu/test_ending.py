"""Traces that GPU arrays leave behind: works that outlive their communicator, GPUs that are busy or lost, memory,
forks."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.gpu import ranks as gpu_ranks
from support.gpu.cases import DELAY

WORKS = """
xs = [put(np.ones(1_000_000, np.float32)) for _ in range(4)]
with hocket.init() as comm:
    comm.allreduce(xs[0])
    ended = comm.allreduce(xs[0], "avg", async_op=True)
    while not ended.done():
        time.sleep(0.001)
    works = [comm.allreduce(x, async_op=True) for x in xs[1:]]
for work in (ended, ended, *works):
    work.wait()
assert all((x.get() == 2).all() for x in xs)
say(misuses=gpu_ranks.count("misuses"))
"""


@pytest.mark.parametrize("knobs", [{}, {"ipc": 0}])
def test_works_that_are_waited_for_after_closing(knobs: dict[str, int], built: Path, tmp_path: Path) -> None:
    """Works end like those of host arrays: closing does not stop them, and their results are there."""
    for said in gpu_ranks.run(built, 2, WORKS, tmp_path, delay=DELAY, **knobs):
        assert said["misuses"] == 0


BUSY = """
from support.gpu.streams import Late
stream = cuda.device(0).stream()
with alone() as world:
    comm = world.dup()
    comm.allreduce(put(np.ones(3, np.float32)))
    if comm.rank == 1:
        gpu_ranks.knob("delay", 800_000)
        late = Late(np.ones(3, np.float32), stream)
    comm.close()
    gpu_ranks.knob("delay", 0)
    late = None
    cuda.device(0).end_stream(stream)
"""


def test_a_rank_whose_gpu_is_busy_when_it_closes(built: Path, tmp_path: Path) -> None:
    """The others wait for it, and give back all that they have."""
    gpu_ranks.run(built, 2, BUSY, tmp_path)


LOST = """
comm = hocket.init()
x = put(np.ones(1000, np.float32))
comm.allreduce(x)
other = comm.dup()
other.allreduce(x)
x.get()
if comm.rank == 1:
    gpu_ranks.knob("dead", 700)
    with telling():
        other.allreduce(x)
began = time.monotonic()
comm.close()
say(took=time.monotonic() - began)
time.sleep(1.2)  # the time of grace of the other one
"""


@pytest.mark.parametrize("knobs", [{}, {"ipc": 0}])
def test_closing_with_a_gpu_that_is_lost(knobs: dict[str, int], built: Path, tmp_path: Path) -> None:
    """By a kernel of the user's, say: that rank leaves the job as others do."""
    said = gpu_ranks.run(built, 2, LOST, tmp_path, **knobs)
    assert said[1]["error"] == "TransportError" and all(each["took"] < 20 for each in said), said


GROWING = """
with alone() as comm:
    for count in range(10_000, 400_000, 10_000):
        comm.allreduce(put(np.ones(count, np.float32)), algorithm="recursive_doubling")
    say(allocations=gpu_ranks.count("allocations"))
"""


def test_scratch_memory_grows_by_few_blocks(built: Path, tmp_path: Path) -> None:
    for said in gpu_ranks.run(built, 2, GROWING, tmp_path):
        assert said["allocations"] < 10, said


FORKED = """
import threading
with alone() as comm:
    x = put(np.ones(1000, np.float32))
    comm.allreduce(x)
    pid = os.fork()
    if pid == 0:
        os._exit(len([thread for thread in threading.enumerate() if "release" in thread.name]))
    assert os.waitpid(pid, 0)[1] == 0
    comm.allreduce(x)
    del x
"""


def test_a_fork_leaves_the_gpu_alone(built: Path, tmp_path: Path) -> None:
    """It has nothing of CUDA's, and no stream's wait to end."""
    gpu_ranks.run(built, 2, FORKED, tmp_path)
