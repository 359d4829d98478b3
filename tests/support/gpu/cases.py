"""Variations of the ranks in the tests of GPU arrays: see ranks.py for what the ranks run."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from support import faulty
from support.gpu import ranks as gpu_ranks

DELAY = 60
"""Microseconds at most by which a stream carries out each thing late."""
BY_EVENTS = "os.environ['HOCKET_GPU_SYNC'] = 'events'\n"
"""Before a rank's program: streams wait for events, not for words in memory."""
APART = """
os.environ["FAKE_CUDA"] = f"first_device={os.environ['HOCKET_RANK']}," + os.environ["FAKE_CUDA"]
"""
"""Each rank sees one GPU, which no other rank sees."""
MORE = pytest.param(4, marks=pytest.mark.gpu)
"""Four ranks: in the plain run of the tests two are as good."""

KILLED = """
{before}
comm = hocket.init()
xs = [put(np.ones({count}, np.float32)) for _ in range(3)]
comm.allreduce(xs[0])
faulty.ready()
with telling():
    while True:
        {call}
        time.sleep({pause})  # the streams shall be behind, but not by minutes
{after}
"""
"""One of the ranks is killed, as killed_in does it."""
REPEATED = {
    "blocking": "comm.allreduce(xs[0])",
    "asynchronous": "[work.wait() for work in [comm.allreduce(x, async_op=True) for x in xs]]",
}
"""The calls that the ranks repeat until then."""


def killed_in(source: str, size: int, delay: int, built: Path, where: Path, closes: bool = True) -> None:
    """Rank 1 is killed: the others say so in time, and where they close, that ends in time too."""
    with gpu_ranks.job(built, size, source, where, delay=delay) as job:
        faulty.all_ready(where, range(size))
        time.sleep(0.2)
        killed = time.monotonic()
        job.signal(1, signal.SIGKILL)
        ends = job.wait()
    for rank in set(range(size)) - {1}:
        said = faulty.facts(ends[rank])
        assert said["error"] == "PeerLostError" and said["ranks"] == [1] and said["at"] - killed < 4.5, said
        assert not closes or (said["at_end"] - killed < 20 and not said.get("misuses")), said
