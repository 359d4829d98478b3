"""Where the driver refuses, or GPUs cannot reach each other: an error, or through pinned or host memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.gpu import ranks as gpu_ranks
from support.gpu.cases import BY_EVENTS, DELAY, MORE

REFUSED = """
{before}
with hocket.init() as world:
    for function, nth in {functions!r}.items():
        comm = world.dup()
        comm.allreduce(put(np.ones(3, np.float32)))
        x = put(np.ones(20_000, np.float32))
        if comm.rank == 1:
            gpu_ranks.refuse(function, nth, 999)
        try:
            for call in range(9):
                work = comm.allreduce(x, algorithm="recursive_doubling", async_op=nth == 2)
                if nth == 2:
                    work.wait()
        except hocket.Error as error:
            say(**{{function: [type(error).__name__, str(error), call]}})
        comm.close()
"""
BOTH = {"cuMemcpyAsync": 1, "cuEventRecord": 2, "cuStreamWaitEvent": 1, "cuLaunchKernel": 2}
WORDS = {"cuStreamWriteValue32_v2": 2, **BOTH, "cuMemAlloc_v2": 1, "cuStreamWaitValue32_v2": 1}
"""Which call of a function is refused, the first or the second (then of an asynchronous call).

Writing comes first: a failed communicator ends its streams' waits for seconds, and would take a later refusal.
"""


@pytest.mark.parametrize(
    ("before", "functions"),
    [("", WORDS), pytest.param(BY_EVENTS, {**BOTH, "cuEventQuery": 1}, marks=pytest.mark.gpu)],
    ids=["words", "events"],
)
@pytest.mark.parametrize("size", [2, MORE])
def test_a_driver_that_refuses(
    size: int, before: str, functions: dict[str, int], built: Path, tmp_path: Path
) -> None:
    """The rank where it does says what the driver says, and the others hear of it."""
    source = REFUSED.format(before=before, functions=functions)
    for rank, said in enumerate(gpu_ranks.run(built, size, source, tmp_path, delay=DELAY)):
        for function in functions:
            kind, text, call = said[function]
            assert "unknown error (CUDA error 999)" in text, (rank, function, text)
            assert kind == "PeerLostError" or (kind == "TransportError" and rank == 1), (rank, function, kind, text)
            if rank == 1 and function == "cuStreamWriteValue32_v2":  # the second time: to let go of what has come
                assert call == 0, "what `consume` says is not heard"


PINNED = """
from support.gpu import functions as gpu_functions
{before}
with alone() as comm:
    gpu_oracle.staged(comm, gpu_functions.by_host(np.maximum))
    if {slots} and cuda.count() == 1:
        gpu_oracle.in_several_slots(comm)
    say(why=comm.gpus.why_staged, pinned=comm.gpus.why_pinned, told=comm.explain())
"""


@pytest.mark.parametrize("size", [2, MORE])
@pytest.mark.parametrize(
    ("before", "knobs", "why"),
    [
        ("", {"ipc": 0}, "operation not supported"),
        pytest.param("", {"pool": 1}, "invalid argument", marks=pytest.mark.gpu),
        pytest.param("", {"devices": 2, "peers": 0}, "peer access is not supported", marks=pytest.mark.gpu),
        ("cuda.library(); gpu_ranks.refuse('cuIpcOpenMemHandle_v2', -int(os.environ['HOCKET_RANK'] == '1'), 205)", {},
         "mapping of buffer object failed"),
        ("os.environ['HOCKET_TRANSPORT'] = 'tcp'", {}, "the ranks' processes talk over tcp"),
    ],
)  # fmt: skip
def test_through_pinned_memory_where_it_must_be(
    before: str, knobs: dict[str, int], why: str, size: int, built: Path, tmp_path: Path
) -> None:
    """Between each two ranks that cannot map each other's memory; and comm.explain() says why."""
    source = PINNED.format(before=before, slots="ipc" in knobs)
    found = gpu_ranks.run(built, size, source, tmp_path, delay=DELAY, **knobs)
    for rank, said in enumerate(found):
        apart = {r for r in range(size) if r != rank and ("peers" not in knobs or (r - rank) % 2)}
        apart &= {1} if "refuse" in before and rank != 1 else apart
        assert said["why"] == "" and set(said["pinned"]) == set(map(str, apart)), (rank, said)
        assert all(why in each and each in said["told"] for each in said["pinned"].values()), (rank, said)


STAGED = """
from support.gpu import functions as gpu_functions
{before}
with alone() as comm:
    gpu_oracle.staged(comm, gpu_functions.by_host(np.maximum))
    say(why=comm.gpus.why_staged)
"""


@pytest.mark.parametrize(
    ("before", "knobs", "why"),
    [
        ("", {"ipc_events": 0, "memops": 0}, "an event"),
        ("", {"room": 30 << 20}, "out of memory"),
        ("os.environ['HOCKET_GPU'] = 'off' if os.environ['HOCKET_RANK'] == '1' else 'on'", {}, "rank 1 has no GPU"),
    ],
)
def test_through_host_memory_where_it_must_be(
    before: str, knobs: dict[str, int], why: str, built: Path, tmp_path: Path
) -> None:
    """On all ranks alike, with the same results; and comm.gpus.why_staged says why."""
    found = gpu_ranks.run(built, 2, STAGED.format(before=before), tmp_path, delay=DELAY, **knobs)
    assert why in found[0]["why"] and found[0]["why"] == found[1]["why"], found


MIXED = """
if os.environ["HOCKET_RANK"] == "1":
    os.environ["HOCKET_GPU"] = "off"
with alone() as comm:
    here = put if comm.rank != 1 else np.copy
    x = here(np.arange(70_003, dtype=np.float32) + comm.rank)
    comm.allreduce(x)
    rows = comm.allgather(x, async_op=True).result()
    host = [each if comm.rank == 1 else each.get() for each in (x, rows)]
    want = np.arange(70_003, dtype=np.float32) * comm.size + sum(range(comm.size))
    assert (host[0] == want).all() and (host[1].reshape(comm.size, -1) == want).all()
    del x, rows
"""


def test_ranks_without_a_gpu_among_others(built: Path, tmp_path: Path) -> None:
    gpu_ranks.run(built, 3, MIXED, tmp_path, delay=DELAY)


LISTED = """
with alone() as comm:
    on_gpu, here = [put(np.full(n, 1.0 + comm.rank, np.float32)) for n in (3, 70_000)], np.ones(5, np.float32)
    comm.allreduce({"gpu": on_gpu, "host": here})
    comm.allreduce([on_gpu, here], async_op=True).wait()
    want = sum(range(1, comm.size + 1)) * comm.size
    assert all((each.get() == want).all() for each in on_gpu) and (here == comm.size**2).all()
    del on_gpu
"""


def test_lists_with_gpu_arrays(built: Path, tmp_path: Path) -> None:
    gpu_ranks.run(built, 2, LISTED, tmp_path, delay=DELAY)
