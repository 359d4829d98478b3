"""GPU arrays on two hosts: two ranks in each of two network namespaces, on stand-ins for the driver."""

from __future__ import annotations

import pathlib
import signal
import time

import pytest

from hocket.system.namespaces import hosts as namespaces
from support import faulty
from support.gpu import ranks as gpu_ranks
from support.two_hosts import job_on

WHY_NOT = namespaces.refusal()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))

ORACLE = """
from support.gpu import streams as gpu_streams
with alone() as comm:
    gpu_oracle.between_hosts(comm)
    gpu_streams.everything(comm)
    say(pinned=comm.gpus.why_pinned, told=comm.explain("allreduce", 1 << 24))
"""


@pytest.mark.gpu
def test_the_bits_of_the_host(built: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with (
        namespaces.hosts() as names, gpu_ranks.machine(built, delay=60) as env,
        job_on(names, gpu_ranks.HEAD + ORACLE, tmp_path, **env) as run,
    ):  # fmt: skip
        ends = run.wait(60)
    for rank, end in enumerate(ends):
        assert end.code == 0 and "fake cuda:" not in end.err, (rank, end.err[-3000:])
        said = faulty.facts(end)
        far = {str(r) for r in range(4) if r // 2 != rank // 2}
        assert set(said["pinned"]) == far and "talk over tcp" in said["told"], said
        assert "streams wait for words" in said["told"], said
        assert "allreduce on a GPU 16 MiB: hierarchical" in said["told"], said


KILLED = """
comm = hocket.init()
x = put(np.ones(1_500_000, np.float32))
comm.allreduce(x)
say(pid=os.getpid())
faulty.ready()
with telling():
    while True:
        comm.allreduce(x, algorithm="ring")
        comm.allreduce(x, async_op=True).wait()
del x
say(at_end=time.monotonic(), misuses=gpu_ranks.count("misuses"))
"""


def test_a_rank_is_killed(built: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The ranks on its host notice, whose streams wait for its marks, and those on the other."""
    with (
        namespaces.hosts() as names, gpu_ranks.machine(built, delay=60) as env,
        job_on(names, gpu_ranks.HEAD + KILLED, tmp_path, **env) as run,
    ):  # fmt: skip
        faulty.all_ready(tmp_path, range(4))
        time.sleep(0.2)
        killed = time.monotonic()
        run.signal(1, signal.SIGKILL)
        ends = run.wait()
    for rank in (0, 2, 3):
        said = faulty.facts(ends[rank])
        assert said["error"] == "PeerLostError" and said["ranks"] == [1] and said["at"] - killed < 4.5, (rank, said)
        assert said["at_end"] - killed < 20 and not said["misuses"], (rank, said)
