"""algorithm="nccl": NCCL's own collectives on GPU arrays, over stand-ins for its library and for the driver."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.gpu import ranks as gpu_ranks
from support.gpu.cases import APART, DELAY, KILLED, REPEATED, killed_in

HEAD = """
import ctypes
from hocket.system.cuda import nccl
def log():
    told = nccl.library().fake_nccl_log
    told.restype = ctypes.c_char_p
    return told().decode().splitlines()
def refused(words, call, *args, kind=hocket.ArgumentError, **how):
    try:
        call(*args, algorithm="nccl", **how)
    except kind as error:
        assert words in str(error), str(error)
    else:
        raise AssertionError(f"nothing said of {words}")
"""

RIGHT = HEAD + """
def both(collective, x, *args, **how):
    want = getattr(comm, collective)(x.copy(), *args, **how)
    given = put(x)
    got = getattr(comm, collective)(given, *args, algorithm="nccl", **how)
    gpu_oracle.same(got, want, f"{collective} of {x.dtype}, {args}, {how}")
    return given
with alone() as comm:
    assert "algorithm=" + '"nccl"' not in comm.explain()
    dice = np.random.default_rng(comm.rank)
    for count in (0, 1, 1000, 30_000):
        x = dice.standard_normal(count * comm.size, np.float32)
        whole = dice.integers(-9, 9, count * comm.size, np.int32)
        for op in ("sum", "prod", "avg", hocket.premul_sum(0.5)):
            both("allreduce", x, op)
        for op in ("sum", "min", "max"):
            both("allreduce", whole, op)
            both("allreduce", whole > 0, op)
        for collective in ("reduce", "broadcast", "gather", "scatter"):
            both(collective, x, root=1)
        kept = both("reduce", x, op="avg")
        assert (kept.get() == x).all(), "reduce leaves x"
        for collective in ("allgather", "reduce_scatter", "alltoall"):
            both(collective, x)
        both("reduce_scatter", whole, op="max")
        both("alltoall", whole.astype(np.complex64))
    out, blocks = put(np.zeros(40, np.float32)), put(np.arange(40, dtype=np.float32))
    assert comm.allreduce(blocks, out=out, algorithm="nccl") is out
    comm.allgather(out.part(20 * comm.rank, 20 * comm.rank + 20), out=out, algorithm="nccl")
    comm.reduce_scatter(blocks, out=blocks.part(20 * comm.rank, 20 * comm.rank + 20), algorithm="nccl")
    assert (out.get() == 2 * np.arange(40)).all()
    assert (blocks.get()[20 * comm.rank:][:20] == 2 * np.arange(40)[20 * comm.rank:][:20]).all()
    stream = cuda.device(0).stream()
    with hocket.on_stream(stream):
        comm.broadcast(out, 1, algorithm="nccl")
        for _ in range(3):
            comm.allreduce(out, algorithm="nccl")        # the short way
    assert all(line.endswith(f" {stream:#x}") for line in log()[-4:]), log()[-4:]
    assert log()[-1].split()[:5] == ["ncclAllReduce", "40", "7", "0", "0"], log()[-1]
    other = comm.split(0, -comm.rank)                    # a communicator of its own, ranks in another order
    other.broadcast(out, 0, algorithm="nccl")
    other.close()
    assert log()[-1] == "destroy"
    names = {(stat.collective, stat.algorithm) for stat in comm.stats()}
    assert {("allreduce", "nccl"), ("alltoall", "nccl")} <= names, names
    assert '  algorithm="nccl": NCCL 2.30.4' in comm.explain(), comm.explain()
    del out, blocks, kept
    cuda.device(0).synchronize(stream)
    cuda.device(0).end_stream(stream)
assert log()[-1] == "destroy" and "abort" not in log()
"""


def test_every_collective_gives_the_bits_of_the_host(built: Path, tmp_path: Path) -> None:
    gpu_ranks.run(built, 2, APART + RIGHT, tmp_path, delay=DELAY)


STREAMS = """
from support.gpu import streams as gpu_streams
gpu_streams.ALGORITHMS = ("nccl", None, "nccl", "ring")
with alone() as comm:
    gpu_streams.together(comm, turns=30)
"""


def test_streams_order_what_is_issued(built: Path, tmp_path: Path) -> None:
    """Blocking and asynchronous calls among hocket's own; NCCL's reach it in one order on all ranks."""
    gpu_ranks.run(built, 2, APART + STREAMS, tmp_path, delay=5 * DELAY)


REFUSED = HEAD + """
os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"          # all on GPU 0
with alone() as comm:
    x, host = put(np.ones(1000, np.float32)), np.ones(1000, np.float32)
    refused("NCCL's max of float32 loses a NaN", comm.allreduce, x, "max")
    refused("NCCL's min of float32 loses a NaN", comm.reduce, x, op="min")
    refused("NCCL cannot reduce complex64", comm.allreduce, put(np.ones(4, np.complex64)))
    refused("NCCL cannot reduce int16", comm.allreduce, put(np.ones(4, np.int16)))
    refused("where an avg may overflow", comm.allreduce, put(np.ones(4, np.float16)), "avg")
    refused("NCCL has no op 'bxor' for int32 (it has sum, prod", comm.allreduce, put(np.ones(4, np.int32)), "bxor")
    refused("NCCL has no scan", comm.scan, x)
    refused("blocks are all of one length", comm.allgatherv, x.part(0, 3 + comm.rank), [3, 4])
    refused("blocks are all of one length", comm.alltoallv, x.part(0, 8), [4, 4], [4, 4])
    refused("cannot call a function or an expression", comm.allreduce, x, lambda a, b: a)
    refused("cannot call a function or an expression", comm.allreduce, x, hocket.expression("a + b"))
    refused("does not keep rank order", comm.allreduce, x, order="rank")
    refused("takes no codec", comm.allreduce, x, codec="int8")
    refused("hocket's own sums", comm.allreduce, host, order="exact")
    refused("these are or go through host memory", comm.allreduce, host)
    refused("these are or go through host memory", comm.barrier)
    assert log() == [] and comm.explain().count('algorithm="nccl": not yet') == 1
    comm.allreduce(x, algorithm="nccl")
    assert len(log()) == 1 + (comm.rank == 0) and (x.get() == 2).all()
    del x
"""


def test_what_cannot_be_is_refused_by_name(built: Path, tmp_path: Path) -> None:
    """And ranks share a GPU where the user asks NCCL for that."""
    gpu_ranks.run(built, 2, REFUSED, tmp_path)


SETTING = """
os.environ["HOCKET_ALGORITHM"] = "nccl"
with alone() as comm:
    for x in (put(np.ones(9, np.float32)), np.ones(9, np.float32)):
        comm.allreduce(x)
        comm.allreduce(x, "max")
        comm.barrier()
    say(names=[(stat.collective, stat.algorithm, stat.calls) for stat in comm.stats() if stat.algorithm == "nccl"])
    del x
"""


def test_a_setting_holds_where_it_can(built: Path, tmp_path: Path) -> None:
    for said in gpu_ranks.run(built, 2, APART + SETTING, tmp_path):
        assert said["names"] == [["allreduce", "nccl", 1]]


NOT_HERE = HEAD + """
{before}
with alone() as comm:
    x = put(np.ones(9, np.float32))
    for _ in range(2):
        refused("algorithm 'nccl' cannot be used here: {words}", comm.allreduce, x)
    comm.allreduce(x)
    assert (x.get() == 2).all() and not (nccl.library.cache_info().currsize and log())
    del x
"""
OLDER = "os.environ['FAKE_NCCL'] = 'version={}'\n"
WHO = "if os.environ['HOCKET_RANK'] == '1':\n    "


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ("", "ranks 0 and 1 share a GPU, which NCCL refuses"),
        ("os.environ['NCCL_MULTI_RANK_GPU_ENABLE'] = '1'\n" + OLDER.format(22907), "ranks 0 and 1 share a GPU"),
        (APART + WHO + "nccl.places = lambda *_: iter(())", "rank 1: libnccl.so.2 is not found: pip install"),
        (APART + OLDER.format(21308), "rank 0: NCCL 2.13.8 is too old"),
        (APART + WHO + OLDER.format(22809), "rank 0 has NCCL 2.30.4, rank 1 2.28.9: install one"),
        (APART + "os.environ['HOCKET_ENCRYPT'] = '1'", "it does not encrypt, and HOCKET_ENCRYPT is set"),
    ],
    ids=["shared", "shared, before 2.30", "missing", "old", "unlike", "encrypted"],
)  # fmt: skip
def test_where_ranks_cannot_meet_by_it(before: str, words: str, built: Path, tmp_path: Path) -> None:
    """On all ranks alike, and other calls go on."""
    gpu_ranks.run(built, 2, NOT_HERE.format(before=before, words=words), tmp_path)


FAILING = HEAD + """
from hocket.errors import TransportError
with hocket.init() as world:
    for setting in ("refuse=2", "fails=1"):
        comm, x = world.dup(), put(np.ones(9, np.float32))
        os.environ["FAKE_NCCL"] = setting if comm.rank == 1 else ""
        try:
            comm.allreduce(x, algorithm="nccl")
            comm.allreduce(x, algorithm="nccl")
            comm.barrier()
        except hocket.Error as error:
            say(**{setting: [type(error).__name__, str(error)]})
        comm.close()
    comm = world.dup()
    try:
        comm.allreduce(x, algorithm="nccl") if comm.rank else comm.allreduce(x)
        comm.barrier()
    except hocket.Error as error:
        say(unlike=[type(error).__name__, str(error)])
    comm.close()
    os.environ["FAKE_NCCL"] = "stuck=1" if world.rank == 1 else ""
    comm = world.dup()
    try:
        comm.allreduce(x, algorithm="nccl", timeout=1)
        comm.barrier()
    except hocket.Error as error:
        say(stuck=[type(error).__name__, str(error)])
    comm.close()
faulty.wait_for(lambda: log().count("abort") == 3, 60, "an abort for each communicator of NCCL's")
"""


def test_errors_of_nccl(built: Path, tmp_path: Path) -> None:
    """The rank where it fails says what NCCL says, and the others hear of it; calls that differ; no meeting."""
    for rank, said in enumerate(gpu_ranks.run(built, 2, APART + FAILING, tmp_path)):
        kinds = {name: value[0] for name, value in said.items()}
        lost = "TransportError" if rank else "PeerLostError"
        assert kinds == {"refuse=2": lost, "fails=1": lost, "unlike": "MismatchError", "stuck": kinds["stuck"]}, said
        assert "internal error (as it was told)" in said["refuse=2"][1], said
        assert "remote process exited or there was a network error" in said["fails=1"][1], said
        told = "not all 2 ranks met within 1 s" in said["stuck"][1]
        assert told or not rank and kinds["stuck"] == "TimeoutError", said  # which waited as long


ENDED = """
comm.close()
del xs  # waits for all streams
say(misuses=gpu_ranks.count("misuses"), at_end=time.monotonic())
"""


@pytest.mark.parametrize("call", REPEATED)
def test_a_rank_is_killed(call: str, built: Path, tmp_path: Path) -> None:
    """The others say so; what NCCL does in their streams is ended, so freeing memory does not hang."""
    by_nccl = re.sub(r"allreduce\((\w+(\[0\])?)", r"allreduce(\1, algorithm='nccl'", REPEATED[call])
    source = KILLED.format(before="", count=1000, call=by_nccl, pause=0, after=ENDED)
    killed_in(APART + source, 3, DELAY, built, tmp_path)
