"""GPU arrays from GPU to GPU, over stand-ins for the driver and the compiler: real processes, streams that are late."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import faulty
from support.cases import more
from support.gpu import ranks as gpu_ranks
from support.gpu.cases import BY_EVENTS, DELAY, MORE

ORACLE = """
with alone() as comm:
    gpu_oracle.everything(comm)
"""


@pytest.mark.parametrize("size", [2, MORE])
def test_every_collective_gives_the_bits_of_the_host(size: int, built: Path, tmp_path: Path) -> None:
    gpu_ranks.run(built, size, ORACLE, tmp_path, delay=DELAY)


@pytest.mark.parametrize("size", [*more(2), MORE])
def test_every_collective_where_streams_wait_for_events(size: int, built: Path, tmp_path: Path) -> None:
    gpu_ranks.run(built, size, BY_EVENTS + ORACLE, tmp_path, delay=DELAY)


STREAMS = """
from support.gpu import streams as gpu_streams
with alone() as comm:
    gpu_streams.everything(comm)
"""


@pytest.mark.parametrize(
    ("before", "knobs"), [("", {}), (BY_EVENTS, {}), ("", {"ipc": 0})], ids=["words", "events", "pinned memory"]
)
@pytest.mark.parametrize("size", [2, MORE])
def test_streams_order_what_is_issued(
    size: int, before: str, knobs: dict[str, int], built: Path, tmp_path: Path
) -> None:
    gpu_ranks.run(built, size, before + STREAMS, tmp_path, delay=5 * DELAY, **knobs)


ISSUED = """
with alone() as comm:
    x = put(np.ones(2048, np.float32))
    for algorithm in ("one_shot", "direct"):
        comm.allreduce(x, algorithm=algorithm)
        comm.allreduce(x, algorithm=algorithm)  # from now on slots are used again
        comm.barrier()
        kinds = "copies", "launches", "value_waits", "value_writes"
        before = sum(map(gpu_ranks.count, kinds))
        for _ in range(8):
            comm.allreduce(x, algorithm=algorithm)
        say(**{algorithm: (sum(map(gpu_ranks.count, kinds)) - before) / 8})
    del x
"""


@pytest.mark.parametrize("size", [2, MORE])
def test_what_a_call_issues(size: int, built: Path, tmp_path: Path) -> None:
    """The figures of collectives/choice/table.py; fewer waits while slots are used for the first time."""
    for said in gpu_ranks.run(built, size, ISSUED, tmp_path):
        assert 3 * size - 1 <= said["one_shot"] <= 4 * size - 2, said
        assert 8 * size - 6 <= said["direct"] <= 10 * size - 8, said


THREADS = """
import threading
with alone() as comm:
    wrong = []
    def calls():
        try:
            for _ in range(5):
                assert comm.allreduce(put(np.ones(1000, np.float32))).get()[0] == comm.size
        except BaseException as error:
            wrong.append(repr(error))
    threads = [threading.Thread(target=calls) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong, wrong
"""


def test_threads_make_the_first_calls_at_once(built: Path, tmp_path: Path) -> None:
    """They are alike, so it is all the same whose comes first."""
    gpu_ranks.run(built, 2, THREADS, tmp_path)


MANY = """
with alone() as comm:
    gpu_oracle.of_many_ranks(comm)
"""


@pytest.mark.gpu
def test_more_ranks_than_a_usual_kernel_has_operands(built: Path, tmp_path: Path) -> None:
    gpu_ranks.run(built, 10, MANY, tmp_path, seconds=90)


MARKS = """
{before}
with alone() as comm:
    comm.allreduce(put(np.ones(3, np.float32)))
    assert comm.gpus.why_staged == ""
    say(why=comm.gpus.why_events, told=comm.explain())
"""


@pytest.mark.parametrize(
    ("before", "knobs", "why", "told"),
    [
        ("", {}, "", "streams wait for words)"),
        ("", {"ipc_events": 0}, "", "streams wait for words)"),
        (BY_EVENTS, {}, "rank 0: HOCKET_GPU_SYNC asks for events", "hosts wait for events, not"),
        ("os.environ.update(HOCKET_GPU_SYNC='events' if os.environ['HOCKET_RANK'] == '1' else 'auto')", {},
         "rank 1: HOCKET_GPU_SYNC", "events"),
        ("", {"memops": 0}, "rank 0: waiting for a word: operation not supported", "events"),
        ("", {"lost_words": 1}, "rank 0: words were not seen within 1 s", "events"),
        ("cuda.library(); gpu_ranks.refuse('cuStreamWriteValue32_v2', int(os.environ['HOCKET_RANK'] == '1'), 801)", {},
         "rank 1: writing a word: operation not supported", "events"),
    ],
)  # fmt: skip
def test_what_streams_wait_for(
    before: str, knobs: dict[str, int], why: str, told: str, built: Path, tmp_path: Path
) -> None:
    """Words if a trial proves them, else events; the same on all ranks, and said."""
    for said in gpu_ranks.run(built, 2, MARKS.format(before=before), tmp_path, **knobs):
        assert said["why"].startswith(why) and bool(said["why"]) == bool(why) and told in said["told"], said


FUNCTIONS = """
from support.gpu import functions as gpu_functions
with alone() as comm:
    gpu_functions.everything(comm)
"""


@pytest.mark.parametrize("size", [2, MORE])
def test_functions_are_called_where_the_bytes_are(size: int, built: Path, tmp_path: Path) -> None:
    gpu_ranks.run(built, size, FUNCTIONS, tmp_path, delay=DELAY)


FAILING = """
from support.gpu import functions as gpu_functions
with hocket.init() as world:
    gpu_functions.that_fail(world)
    assert world.allreduce(put(np.ones(3, np.float32))).get()[0] == world.size
"""


@pytest.mark.parametrize("size", [2, MORE])
def test_functions_that_fail(size: int, built: Path, tmp_path: Path) -> None:
    gpu_ranks.run(built, size, FAILING, tmp_path, delay=DELAY)


DEVICES = """
with alone() as comm:
    gpu_oracle.on_devices(comm)
"""


@pytest.mark.parametrize("size", [2, MORE])
def test_ranks_on_two_devices(size: int, built: Path, tmp_path: Path) -> None:
    gpu_ranks.run(built, size, DEVICES, tmp_path, delay=DELAY, devices=2)


HOST = """
import sys
with hocket.init() as comm:
    assert comm.allreduce(np.ones(3))[0] == comm.size
    rooms = "hocket.collectives.gpu.", "hocket.system.cuda.", "hocket.kernels.gpu.", "hocket.transports.cuda_ipc."
    loaded = [name for name in sys.modules if name.startswith(rooms) and name != "hocket.collectives.gpu.gpus"]
    with open("/proc/self/maps") as maps:
        loaded += [line for line in maps if "libcuda" in line]
    say(loaded=loaded, why=comm.gpus.why_staged)
"""


def test_host_arrays_load_nothing_of_it(built: Path, tmp_path: Path) -> None:
    with faulty.job(2, HOST, tmp_path, {"LD_LIBRARY_PATH": str(built)}) as job:
        for end in job.wait():
            said = faulty.facts(end)
            assert said["loaded"] == [] and said["why"] is None
