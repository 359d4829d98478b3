"""Messages from GPU to GPU of one host: right in every order, with no byte in host memory; and what goes wrong."""

from __future__ import annotations

from pathlib import Path

from support.gpu import ranks as gpu_ranks
from support.gpu.cases import DELAY, KILLED, killed_in

RIGHT = """
from support.gpu.counted import counting
def values(rank, n, turn):
    return np.random.default_rng([rank, n, turn]).standard_normal(n).astype(np.float32)
with alone() as comm:
    other, rank = 1 - comm.rank, comm.rank
    early = put(np.zeros(3, np.float32))
    comm.sendrecv(put(values(rank, 3, 0)), other, early, other)  # before the first collective: through host memory
    assert (early.get() == values(other, 3, 0)).all()
    comm.allreduce(put(np.ones(1, np.float32)))
    for n in (0, 1, 80, 4099, {big}):
        x, out = put(values(rank, n, 1)), put(np.zeros(n, np.float32))
        with counting(waits=4):
            if rank == 0:
                comm.send(x, other, 7)
                assert comm.recv(out, other, 8) is out
            else:
                comm.recv(out, other, 7)
                comm.send(x, other, 8)
        assert (out.get() == values(other, n, 1)).all(), n
        with counting(waits=2):
            comm.sendrecv(x, other, out, other)
    xs, outs = [[put(values(who, 500, turn)) for turn in range(6)] for who in (rank, rank)]
    with counting(waits=12):
        sent = [comm.send(x, other, tag, async_op=True) for tag, x in enumerate(xs)]
        for x in xs:
            x.set_later(np.zeros(500, np.float32))  # what was sent is what it was
        works = [comm.recv(out, None, tag, async_op=True) for tag, out in reversed(list(enumerate(outs)))]
        for work in [*works, *sent]:
            work.wait()
    for turn, out in enumerate(outs):
        assert (out.get() == values(other, 500, turn)).all(), turn
    assert works[0].source == other and works[0].tag == 5
    with hocket.group():
        comm.send(outs[0], other)
        comm.recv(xs[0], other)
    assert (xs[0].get() == values(rank, 500, 0)).all()
    comm.send(outs[1], rank, 3)  # to itself
    comm.recv(xs[1], rank, 3)
    assert (xs[1].get() == outs[1].get()).all()
    rooms = comm.gpus.all_rooms
    for _ in range(30):
        comm.sendrecv(outs[0], other, xs[0], other)
    assert len(rooms._own[other]) < 12, "rooms are used again"
    work = comm.recv(xs[2], other, 9, async_op=True)
    assert comm.gpus.why_staged == "" and "on a GPU" in repr(work)
    comm.send(outs[0], other, 9)
    work.wait()
    del early, x, out, xs, outs, works, sent, work
"""


def test_every_order(built: Path, tmp_path: Path) -> None:
    gpu_ranks.run(built, 2, RIGHT.format(big=(3 << 20) + 7), tmp_path, delay=60)


WRONG = """
with hocket.init() as world:
    stream = cuda.device(0).stream()
    x, host = put(np.arange(900, dtype=np.float32)), np.zeros(900, np.float32)
    tries = {
        "host out": (lambda comm: comm.send(x, 1), lambda comm: comm.recv(host, 0)),
        "host x": (lambda comm: comm.send(host, 1), lambda comm: comm.recv(x, 0)),
        "short": (lambda comm: comm.send(x, 1), lambda comm: comm.recv(x.part(0, 899), 0)),
    }
    for name, ways in tries.items():
        comm = world.dup()
        comm.allreduce(put(np.ones(1, np.float32)))
        try:
            ways[comm.rank](comm)
            comm.barrier()
        except hocket.Error as error:
            say(**{name: [type(error).__name__, str(error)]})
        comm.close()
    comm = world.dup()
    comm.allreduce(put(np.ones(1, np.float32)))
    def refused(words, call, kind=hocket.ArgumentError):
        try:
            call()
        except kind as error:
            assert words in str(error), error
        else:
            raise AssertionError(words)
    late = GpuArray(6, np.float32, stream=stream)
    gpu_ranks.knob("capturing", stream)
    refused("captured into a CUDA graph", lambda: comm.send(late, 1 - comm.rank))
    refused("captured into a CUDA graph", lambda: comm.recv(late, 1 - comm.rank))
    gpu_ranks.knob("capturing", 0)
    refused("works on GPU 0; the array is on GPU 1", lambda: comm.send(put(np.ones(6, np.float32), 1), 1 - comm.rank))
    gpu_ranks.knob("room", gpu_ranks.count("bytes"))
    refused("no room for 2097152 bytes on GPU 0", lambda: comm.send(x, 1 - comm.rank), hocket.errors.MemoryError)
    gpu_ranks.knob("room", 1 << 40)
    if comm.rank == 0:
        comm.send(x, 1)
        comm.barrier()
    else:
        while comm.gpus.all_rooms is None or not said_gpu(comm):
            pass
        comm.recv(x, 0)
        comm.barrier()
    comm.close()
    cuda.device(0).end_stream(stream)
"""
SAID = """
def said_gpu(comm):
    try:
        return comm.probe(0, timeout=0) is not None
    except hocket.ArgumentError as error:
        assert "goes from GPU to GPU" in str(error), error
        return True
"""


def test_what_cannot_be_is_told(built: Path, tmp_path: Path) -> None:
    said = gpu_ranks.run(built, 2, SAID + WRONG, tmp_path, devices=2)
    for rank in (0, 1):
        for name, words in (("host out", "got float32 on a GPU from rank 0"), ("host x", "recv(float32[900] on a GPU")):
            kind, text = said[rank][name]
            assert kind == "MismatchError" and words in text, (rank, name, text)
    kind, text = said[1]["short"]
    assert kind == "MismatchError" and "recv has room for 3596 bytes, and rank 0 of this communicator sent 3600" in text
    assert said[0]["short"][0] in ("PeerLostError", "MismatchError"), said[0]


RING = "comm.sendrecv(xs[0], (comm.rank + 1) % 3, xs[1], (comm.rank - 1) % 3)"
FREED = """
comm.close()
del xs
while gpu_ranks.count("ipc_maps"):
    time.sleep(0.01)
say(misuses=gpu_ranks.count("misuses"), at_end=time.monotonic())
"""


def test_a_rank_is_killed(built: Path, tmp_path: Path) -> None:
    """The others say so, and let go of its memory."""
    before = "from hocket.collectives.gpu import context\ncontext.RELEASES = 5"
    killed_in(KILLED.format(before=before, count=70_001, call=RING, pause=0, after=FREED), 3, DELAY, built, tmp_path)
