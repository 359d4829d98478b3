"""Calls that are captured into a CUDA graph: replayed by the stand-in, or refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import faulty
from support.gpu import ranks as gpu_ranks
from support.gpu.cases import APART, DELAY

HEAD = """
import contextlib, ctypes, random
@contextlib.contextmanager
def capture(stream):
    gpu_ranks.knob("capturing", stream)
    with hocket.on_stream(stream):
        yield
    gpu_ranks.knob("capturing", 0)
def replay(stream, onto=1):
    function = gpu_ranks.driver().fake_replay
    function.argtypes = [ctypes.c_void_p] * 2
    with cuda.device(0):
        assert function(stream, onto) > 0
"""
REPLAYED = HEAD + """
own, n = random.Random(os.environ["HOCKET_RANK"]), 6000
with alone() as comm:
    p, device = comm.size, cuda.device(0)
    x, blocks = (put(np.zeros(n * k, np.float32)) for k in (1, p))
    gathered, reduced = put(np.zeros(n * p, np.float32)), put(np.zeros(n, np.float32))
    graphs = [device.stream(), device.stream()]
    def step(mean):
        comm.allreduce(x, "avg" if mean else "sum", {small})
        comm.allgather(x, out=gathered, {direct})
        comm.reduce_scatter(blocks, out=reduced, {direct})
        comm.allreduce(reduced, {direct})
    step(False), step(True)                              # what is made at the first call is made here
    for mean, graph in enumerate(graphs):
        with capture(graph):
            step(mean)
    assert (x.get() == 0).all(), "nothing has run yet"
    for turn in range(12):
        given = [np.float32(np.arange(n) % 7 + r + turn) for r in range(p)]
        x.set(given[comm.rank])
        blocks.set(np.concatenate([given[comm.rank] * (r + 1) for r in range(p)]))
        mean = turn // 2 % 2
        if own.random() < 0.3:
            time.sleep(0.02)                             # who is ahead does not disturb who is late
        if turn % 3 == 2:                                # in between, calls that are not captured
            step(mean)
        else:
            replay(graphs[mean])
        total = sum(given)
        one = total / p if mean else total
        assert np.allclose(x.get(), one), (turn, "allreduce")
        assert (gathered.get() == np.tile(x.get(), p)).all(), (turn, "allgather")
        assert np.allclose(reduced.get(), total * sum(range(1, p + 1))), (turn, "reduce_scatter, allreduce")
    comm.allreduce(x)
    assert np.allclose(x.get(), one * p)
    for graph in graphs:
        device.end_stream(graph)
    del x, blocks, gathered, reduced
"""


@pytest.mark.parametrize(
    ("small", "direct"),
    [("algorithm='one_shot'", "algorithm='direct'"), ("algorithm='nccl'", "algorithm='nccl'")],
    ids=["kernels that meet", "NCCL"],
)
def test_a_step_is_captured_and_replayed(small: str, direct: str, built: Path, tmp_path: Path) -> None:
    """Two graphs in turn, with other calls between, on ranks that are late at times."""
    gpu_ranks.run(built, 2, APART + REPLAYED.format(small=small, direct=direct), tmp_path, delay=DELAY)


KILLED = HEAD + """
with hocket.init() as comm:
    x, graph = put(np.ones(600, np.float32)), cuda.device(0).stream()
    comm.allreduce(x, {how})
    with capture(graph):
        comm.allreduce(x, {how})
    replay(graph)
    x.get()
    comm.barrier()
    if comm.rank == 1:
        os._exit(7)
    replay(graph)                                        # its kernel waits for that of a rank that is dead
    with telling():
        while True:
            comm.barrier()
    began = time.monotonic()
    comm.close()
    cuda.device(0).synchronize(1)
    say(took=time.monotonic() - began)
    os._exit(0)
"""


@pytest.mark.parametrize("how", ["algorithm='direct'", "algorithm='nccl'"])
def test_a_replay_whose_peer_is_dead_ends(how: str, built: Path, tmp_path: Path) -> None:
    with gpu_ranks.job(built, 2, APART + KILLED.format(how=how), tmp_path) as job:
        ends = job.wait()
    said = faulty.facts(ends[0])
    assert said["error"] == "PeerLostError" and said["took"] < 20, ends[0].err


REFUSED = HEAD + """
with alone() as comm:
    x, stream = put(np.ones(6, np.float32)), cuda.device(0).stream()
    def refused(call, *args, **how):
        with capture(stream):
            try:
                call(*args, **how)
            except hocket.ArgumentError as error:
                assert "captured into a CUDA graph" in str(error), error
            else:
                raise AssertionError("it was captured")
    refused(comm.allreduce, x)                           # the first call of all
    comm.allreduce(x, algorithm="direct")
    refused(comm.allreduce, x, "min", algorithm="direct")     # its kernel is not there yet
    refused(comm.allreduce, x, algorithm="direct", async_op=True)
    refused(comm.allreduce, x, algorithm="ring")
    refused(comm.allreduce, x, algorithm="nccl")         # its communicator is not there yet
    comm.allreduce(x, algorithm="direct")
    assert (x.get() == comm.size ** 2).all() and comm.gpus.why_staged == ""
    cuda.device(0).end_stream(stream)
    del x
"""


def test_what_cannot_be_captured_is_refused(built: Path, tmp_path: Path) -> None:
    gpu_ranks.run(built, 2, APART + REFUSED, tmp_path)
