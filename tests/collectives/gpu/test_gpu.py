"""GPU arrays from GPU to GPU, over stand-ins for the driver and the compiler: real processes, streams that are late."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import faulty
import gpu_ranks
import pytest

DELAY = 60
"""Microseconds at most by which a stream carries out each thing late."""
BY_EVENTS = "os.environ['HOCKET_GPU_SYNC'] = 'events'\n"
MORE = pytest.param(4, marks=pytest.mark.gpu)
"""Ranks: as good as two in the plain run of the tests."""


ORACLE = """
with alone() as comm:
    gpu_oracle.everything(comm)
"""


@pytest.mark.parametrize("size", [2, MORE])
def test_every_collective_gives_the_bits_of_the_host(size: int, built: Path, tmp_path: Path) -> None:
    for said in gpu_ranks.run(built, size, ORACLE, tmp_path, delay=DELAY):
        assert said["done"]


@pytest.mark.parametrize("size", [2, MORE])
def test_every_collective_where_streams_wait_for_events(size: int, built: Path, tmp_path: Path) -> None:
    for said in gpu_ranks.run(built, size, BY_EVENTS + ORACLE, tmp_path, delay=DELAY):
        assert said["done"]


STREAMS = """
import gpu_streams
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
    for said in gpu_ranks.run(built, size, before + STREAMS, tmp_path, delay=5 * DELAY, **knobs):
        assert said["done"]


REGISTERED = """
import gpu_registered
{before}
with alone() as comm:
    early = put(np.ones(200_000, np.float32))
    comm.register(early)
    gpu_registered.everything(comm)
    assert comm.allreduce(early).get()[0] == comm.size and "registered" not in comm.explain()
    del early
"""


@pytest.mark.parametrize("before", ["", pytest.param(BY_EVENTS, marks=pytest.mark.gpu)], ids=["words", "events"])
@pytest.mark.parametrize("size", [2, MORE])
def test_registered_memory_is_read_in_place(size: int, before: str, built: Path, tmp_path: Path) -> None:
    gpu_ranks.run(built, size, REGISTERED.format(before=before), tmp_path, delay=500)


UNREGISTERED = """
with alone() as comm:
    x = [put(np.ones(200_000, np.float32)) for _ in range(67)]
    comm.allreduce(put(np.ones(3, np.float32)))
    unmapped = put(np.ones(200_000, np.float32))
    comm.register(unmapped)
    if comm.rank:
        gpu_ranks.refuse("cuIpcOpenMemHandle_v2", 1, 205)
    for _ in range(3):
        comm.allreduce(unmapped)
    assert unmapped.get()[-1] == comm.size ** 3
    gpu_ranks.knob("pool", 1)
    pooled = put(np.ones(200_000, np.float32))
    for each in (pooled, *x):
        comm.register(each)
    for each in (pooled, x[0], x[66]):
        for _ in range(2):
            comm.allreduce(each)
        assert each.get()[-1] == comm.size ** 2
    told = comm.explain()
    assert "registered, and copied all the same: 1 (its allocator makes memory that CUDA does not share" in told, told
    assert "registered, and copied all the same: 4 (64 allocations are registered already)" in told, told
    gpu_ranks.knob("pool", 0)
    comm = comm.dup()
    gpu_ranks.knob("ipc", 0)
    comm.register(x[0])
    assert comm.allreduce(x[0]).get()[0] == comm.size ** 3
    told = comm.explain()
    assert "registered, and copied all the same: 1 (no other rank's GPU is mapped here)" in told, told
    try:
        comm.register(np.ones(3))
    except hocket.ArgumentError as error:
        assert "on a GPU" in str(error)
    else:
        raise AssertionError
    comm.close()
    try:
        comm.register(x[0])
    except hocket.ArgumentError as error:
        assert "is closed" in str(error)
    else:
        raise AssertionError
    del x, pooled, unmapped, each, comm
"""


def test_memory_that_cannot_be_registered(built: Path, tmp_path: Path) -> None:
    gpu_ranks.run(built, 2, UNREGISTERED, tmp_path)


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
    """The figures of algorithms/choice/table.py; fewer waits while slots are used for the first time."""
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
import gpu_functions
with alone() as comm:
    gpu_functions.everything(comm)
"""


@pytest.mark.parametrize("size", [2, MORE])
def test_functions_are_called_where_the_bytes_are(size: int, built: Path, tmp_path: Path) -> None:
    for said in gpu_ranks.run(built, size, FUNCTIONS, tmp_path, delay=DELAY):
        assert said["done"]


FAILING = """
import gpu_functions
with hocket.init() as world:
    gpu_functions.that_fail(world)
    assert world.allreduce(put(np.ones(3, np.float32))).get()[0] == world.size
"""


@pytest.mark.parametrize("size", [2, MORE])
def test_functions_that_fail(size: int, built: Path, tmp_path: Path) -> None:
    gpu_ranks.run(built, size, FAILING, tmp_path, delay=DELAY)


# ------------------------------------------------------------------------------------------- calls that differ

MISMATCHES = {
    "count": ("comm.allreduce(x)", "comm.allreduce(x.part(0, 999))"),
    "dtype": ("comm.allreduce(x)", "comm.allreduce(put(np.ones(1000, np.int32)))"),
    "op": ("comm.allreduce(x)", "comm.allreduce(x, 'max')"),
    "expression": ("comm.allreduce(x)", "comm.allreduce(x, hocket.expression('a + a - b'))"),
    "collective": ("comm.allreduce(x)", "comm.broadcast(x)"),
    "asynchronous": ("comm.allreduce(x, async_op=True).wait()", "comm.allreduce(x, 'min', async_op=True).wait()"),
    "the first": ("comm.allreduce(x)", "comm.allreduce(x.get())"),
    "host": ("comm.allreduce(x)", "comm.allreduce(x.get())"),
}
MISMATCH = """
with hocket.init() as world:
    for number, (name, (most, odd)) in enumerate({cases!r}.items()):
        comm = world.dup()
        x = put(np.ones(1000, np.float32))
        if name != "the first":
            comm.allreduce(x)
        began = time.monotonic()
        try:
            eval(odd if comm.rank == number % comm.size else most)
            comm.barrier()
            comm.barrier()
        except hocket.Error as error:
            say(**{{name: [type(error).__name__, str(error), time.monotonic() - began]}})
        comm.close()
    assert world.allreduce(x).get()[0] >= comm.size
"""


@pytest.mark.parametrize("size", [2, MORE])
def test_calls_that_differ(size: int, built: Path, tmp_path: Path) -> None:
    for rank, said in enumerate(gpu_ranks.run(built, size, MISMATCH.format(cases=MISMATCHES), tmp_path, delay=DELAY)):
        for name in MISMATCHES:
            kind, text, took = said[name]
            assert kind == "MismatchError" and "allreduce(float32[1000]" in text and took < 3, (rank, name, said[name])


# ------------------------------------------------------------------------------------------- ranks that are lost

KILLED = """
from hocket.collectives.gpu import accelerated
accelerated.RELEASES = 5
{before}
comm = hocket.init()
xs = [put(np.ones({count}, np.float32)) for _ in range(3)]
comm.allreduce(xs[0])
faulty.ready()
with telling():
    while True:
        {call}
        time.sleep({pause})  # the streams shall be behind, but not by minutes
comm.close()
say(at_end=time.monotonic())
{after}
"""
FREED = """
del xs  # waits for all streams
while gpu_ranks.count("ipc_maps") or gpu_ranks.count("streams"):
    time.sleep(0.01)
say(misuses=gpu_ranks.count("misuses"), at_end=time.monotonic())
"""
REPEATED = {
    "blocking": "comm.allreduce(xs[0])",
    "asynchronous": "[work.wait() for work in [comm.allreduce(x, async_op=True) for x in xs]]",
}


@pytest.mark.parametrize(
    ("size", "delay", "count", "call"),
    [
        (2, DELAY, 1000, "asynchronous"), (4, DELAY, 1_500_000, "blocking"), (3, 30_000, 70_001, "blocking"),
        *(pytest.param(*each, marks=pytest.mark.gpu) for each in (
            (2, DELAY, 1000, "blocking"), (4, DELAY, 1_500_000, "asynchronous"), (3, 30_000, 70_001, "asynchronous"))),
    ],
)  # fmt: skip
def test_a_rank_is_killed(call: str, size: int, delay: int, count: int, built: Path, tmp_path: Path) -> None:
    """The others say so, and their streams end; in the last case they are full of waits for what will not come.

    With four ranks the process ends at once, when the threads that end waits go too.
    """
    how = {"count": count, "call": REPEATED[call], "pause": delay / 500_000, "after": "" if size == 4 else FREED}
    killed_in(KILLED.format(before="", **how), size, delay, built, tmp_path)


@pytest.mark.parametrize("call", ["blocking", pytest.param("asynchronous", marks=pytest.mark.gpu)])
def test_a_rank_is_killed_while_others_wait_for_events(call: str, built: Path, tmp_path: Path) -> None:
    """No stream waits for those of a peer: what it has not done by then is not waited for."""
    source = KILLED.format(count=70_001, call=REPEATED[call], before=BY_EVENTS, after=FREED, pause=0)
    killed_in(source, 3, 30_000, built, tmp_path)


def killed_in(source: str, size: int, delay: int, built: Path, tmp_path: Path) -> None:
    with gpu_ranks.job(built, size, source, tmp_path, delay=delay) as job:
        faulty.all_ready(tmp_path, range(size))
        time.sleep(0.2)
        killed = time.monotonic()
        job.signal(1, signal.SIGKILL)
        ends = job.wait(20)
    for rank in set(range(size)) - {1}:
        said = faulty.facts(ends[rank])
        assert said["error"] == "PeerLostError" and said["ranks"] == [1] and said["at"] - killed < 2, said
        assert said["at_end"] - killed < 6 and not said.get("misuses"), said


OUTSIDE = """
comm = hocket.init()
x = put(np.ones(70_001, np.float32))
for _ in range(20):
    comm.allreduce(x)
faulty.ready()
if comm.rank == 1:
    os.kill(os.getpid(), 9)
x.get()
with telling():
    comm.allreduce(x)
say(at_end=time.monotonic(), at=0)
del x
"""


def test_a_rank_is_killed_while_others_are_elsewhere(built: Path, tmp_path: Path) -> None:
    """Its calls were issued and not carried out: whoever waits for the GPU, not for hocket, comes back too."""
    with gpu_ranks.job(built, 3, OUTSIDE, tmp_path, delay=5000) as job:
        faulty.all_ready(tmp_path, range(3))
        began = time.monotonic()
        ends = job.wait(20)
    for rank in (0, 2):
        said = faulty.facts(ends[rank])
        assert said["error"] == "PeerLostError" and said["at_end"] - began < 5, said


LATE = """
comm = hocket.init()
x = put(np.ones(1000, np.float32))
comm.allreduce(x)
with telling():
    if comm.rank == 1:
        time.sleep(1.6)
    comm.allreduce(x, timeout=1)
comm.close()
"""


LATE_AT_FIRST = """
comm = hocket.init()
x = put(np.ones(1000, np.float32))
with telling():
    if comm.rank == 1:
        time.sleep(1.6)
    comm.allreduce(x, timeout=1)
comm.close()
"""


@pytest.mark.gpu
def test_a_rank_is_late_for_the_first_call(built: Path, tmp_path: Path) -> None:
    for rank, said in enumerate(gpu_ranks.run(built, 3, LATE_AT_FIRST, tmp_path)):
        assert said["error"] == "TimeoutError" and said["missing"] == [1], (rank, said)


def test_a_rank_is_late(built: Path, tmp_path: Path) -> None:
    for rank, said in enumerate(gpu_ranks.run(built, 3, LATE, tmp_path, delay=DELAY)):
        assert said["error"] == "TimeoutError" and said["missing"] == [1], (rank, said)


FIRST = """
from hocket.collectives.engine.queue import Queue
from hocket.transports.cuda_ipc.proof import Proof
wait, accept, second = Proof.wait, Queue.accept, os.environ["HOCKET_RANK"] == "1"

def waiting(self, peers):
    why = wait(self, peers)
    if second and {stage!r} == "trial":
        {how}
    return why

def accepting(self, offers):
    accept(self, offers)
    if self.accelerator is not None and {stage!r} == "opening":
        time.sleep(0.5)  # the other has opened it
        if second:
            {how}
        time.sleep(0.5)

Proof.wait, Queue.accept = waiting, accepting
comm = hocket.init()
x = put(np.ones(1000, np.float32))
with telling():
    comm.allreduce(x, timeout=20)
del x  # waits for all streams
say(at_end=time.monotonic(), streams=gpu_ranks.count("streams"), maps=gpu_ranks.count("ipc_maps"))
"""
KILL, INTERRUPT = "os.kill(os.getpid(), 9)", "raise KeyboardInterrupt"


@pytest.mark.parametrize(("stage", "how"), [("trial", KILL), ("trial", INTERRUPT), ("opening", KILL)])
def test_a_rank_is_lost_in_the_first_call(stage: str, how: str, built: Path, tmp_path: Path) -> None:
    """Where streams wait for words already, or when all is made and the engine is not yet known: nobody hangs."""
    began = time.monotonic()
    with gpu_ranks.job(built, 2, FIRST.format(stage=stage, how=how), tmp_path) as job:
        ends = job.wait(15)
    said = faulty.facts(ends[0])
    assert said["error"] == "PeerLostError" and said["ranks"] == [1] and said["at_end"] - began < 6, said
    if stage == "trial":
        assert said["streams"] == said["maps"] == 0, said
    if how == INTERRUPT:
        said = faulty.facts(ends[1])
        assert said["error"] == "KeyboardInterrupt" and said["streams"] == said["maps"] == 0, said


CLOSING = """
comm = hocket.init()
x = put(np.ones(70_001, np.float32))
for _ in range(40):
    comm.allreduce(x)
if comm.rank == 1:
    {how}
comm.close()
del x
say(done=True)
"""
AFTER_THE_BARRIER = """barrier = type(comm)._last_barrier
    type(comm)._last_barrier = lambda self, timeout: (barrier(self, timeout), os.kill(os.getpid(), 9))"""


@pytest.mark.parametrize(
    ("how", "before"),
    [
        pytest.param(KILL, "", marks=pytest.mark.gpu),
        (AFTER_THE_BARRIER, ""),
        pytest.param(AFTER_THE_BARRIER, BY_EVENTS, marks=pytest.mark.gpu),
    ],
    ids=["killed", "words", "events"],
)
def test_a_rank_is_killed_while_others_close(how: str, before: str, built: Path, tmp_path: Path) -> None:
    """Their streams wait for what it has issued, and closing waits for them: that is ended as it is in calls.

    (With events their hosts wait, so that calls before may fail with a rank that is killed before its GPU is through.)
    """
    with gpu_ranks.job(built, 2, before + CLOSING.format(how=how), tmp_path, delay=10_000) as job:
        assert faulty.facts(job.wait(20)[0])["done"]


BESIDE = """
world = hocket.init()
pinned, mapped = (world.split(0 if world.rank in pair else None) for pair in ((0, 1), (0, 2)))
x, y = (put(np.ones(70_001, np.float32), world.rank % 2) for _ in range(2))
if pinned is not None:
    pinned.allreduce(x)
    assert pinned.gpus.why_pinned
if mapped is not None:
    mapped.allreduce(y)
    assert not mapped.gpus.why_pinned
    if world.rank == 2:
        gpu_ranks.knob("delay", 300_000)
    for _ in range(3):
        mapped.allreduce(y)
    if world.rank == 2:
        os.kill(os.getpid(), 9)
if world.rank == 0:
    with telling():
        while True:
            mapped.allreduce(y)
if pinned is not None:
    pinned.close()
say(done=True)
os._exit(0)
"""


def test_a_rank_is_killed_and_another_communicator_is_closed(built: Path, tmp_path: Path) -> None:
    """To free pinned memory waits for all streams, and the thread that ends the waits of some must run meanwhile."""
    with gpu_ranks.job(built, 4, BESIDE, tmp_path, delay=DELAY, devices=2, peers=0) as job:
        ends = job.wait(20)
    assert all(faulty.facts(ends[rank])["done"] for rank in (0, 1, 3))


NO_COMPILER = """
from hocket.system.cuda import nvrtc
if os.environ["HOCKET_RANK"] == "1":
    nvrtc._places = lambda: iter(())
comm = hocket.init()
x = put(np.ones(1000, np.float32))
with telling():
    comm.allreduce(x, timeout=10)
"""


def test_a_rank_without_a_compiler(built: Path, tmp_path: Path) -> None:
    for rank, said in enumerate(gpu_ranks.run(built, 2, NO_COMPILER, tmp_path)):
        assert said["error"] == ("TransportError" if rank else "PeerLostError"), said
        assert "pip install nvidia-cuda-nvrtc" in said["text"], said


# ------------------------------------------------------------------------------------------- what is kept, and ends

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
    """As of host arrays: closing does not stop them, and their results are there."""
    for said in gpu_ranks.run(built, 2, WORKS, tmp_path, delay=DELAY, **knobs):
        assert said["misuses"] == 0


BUSY = """
from gpu_streams import Late
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
    assert said[1]["error"] == "TransportError" and all(each["took"] < 3 for each in said), said


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


# ------------------------------------------------------------------------------------------- a driver that refuses

REFUSED = """
{before}
with hocket.init() as world:
    for number, function in enumerate({functions!r}):
        comm = world.dup()
        comm.allreduce(put(np.ones(3, np.float32)))
        x = put(np.ones(20_000, np.float32))
        if comm.rank == 1:
            gpu_ranks.refuse(function, 1 + number % 2, 999)
        try:
            for _ in range(9):
                work = comm.allreduce(x, algorithm="recursive_doubling", async_op=number % 2 == 1)
                if number % 2:
                    work.wait()
        except hocket.Error as error:
            say(**{{function: [type(error).__name__, str(error)]}})
        comm.close()
"""
REFUSING = ("cuMemcpyAsync", "cuEventRecord", "cuStreamWaitEvent", "cuLaunchKernel", "cuMemAlloc_v2",
            "cuStreamWriteValue32_v2", "cuStreamWaitValue32_v2")  # fmt: skip


@pytest.mark.parametrize(
    ("before", "functions"),
    [("", REFUSING), pytest.param(BY_EVENTS, (*REFUSING[:4], "cuEventQuery"), marks=pytest.mark.gpu)],
    ids=["words", "events"],
)
@pytest.mark.parametrize("size", [2, MORE])
def test_a_driver_that_refuses(
    size: int, before: str, functions: tuple[str, ...], built: Path, tmp_path: Path
) -> None:
    """The rank where it does says what the driver says, and the others hear of it."""
    source = REFUSED.format(before=before, functions=functions)
    for rank, said in enumerate(gpu_ranks.run(built, size, source, tmp_path, delay=DELAY)):
        for function in functions:
            kind, text = said[function]
            assert "unknown error (CUDA error 999)" in text, (rank, function, text)
            assert kind == "PeerLostError" or (kind == "TransportError" and rank == 1), (rank, function, kind, text)


PINNED = """
import gpu_functions
{before}
with alone() as comm:
    gpu_oracle.staged(comm, gpu_functions.by_host(np.maximum))
    if cuda.count() == 1:
        gpu_oracle.in_several_slots(comm)
    say(why=comm.gpus.why_staged, pinned=comm.gpus.why_pinned, told=comm.explain())
"""


@pytest.mark.parametrize("size", [2, MORE])
@pytest.mark.parametrize(
    ("before", "knobs", "why"),
    [
        ("", {"ipc": 0}, "operation not supported"),
        ("", {"pool": 1}, "invalid argument"),
        ("", {"devices": 2, "peers": 0}, "peer access is not supported"),
        ("cuda.library(); gpu_ranks.refuse('cuIpcOpenMemHandle_v2', -int(os.environ['HOCKET_RANK'] == '1'), 205)", {},
         "mapping of buffer object failed"),
        ("os.environ['HOCKET_TRANSPORT'] = 'tcp'", {}, "the ranks' processes talk over tcp"),
    ],
)  # fmt: skip
def test_through_pinned_memory_where_it_must_be(
    before: str, knobs: dict[str, int], why: str, size: int, built: Path, tmp_path: Path
) -> None:
    """Between each two ranks that cannot map each other's memory; and comm.explain() says why."""
    found = gpu_ranks.run(built, size, PINNED.format(before=before), tmp_path, delay=DELAY, **knobs)
    for rank, said in enumerate(found):
        apart = {r for r in range(size) if r != rank and ("peers" not in knobs or (r - rank) % 2)}
        apart &= {1} if "refuse" in before and rank != 1 else apart
        assert said["why"] == "" and set(said["pinned"]) == set(map(str, apart)), (rank, said)
        assert all(why in each and each in said["told"] for each in said["pinned"].values()), (rank, said)


STAGED = """
import gpu_functions
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


# ------------------------------------------------------------------------------------------- what cannot be

WRONG = """
with alone() as comm:
    x, stream = put(np.ones(6, np.float32)), cuda.device(0).stream()
    comm.allreduce(x)

    def refused(words, call, *args, **how):
        try:
            call(*args, **how)
        except hocket.ArgumentError as error:
            assert words in str(error), str(error)
        else:
            raise AssertionError(f"nothing said of {{words}}")

    there = GpuArray(6, np.float32, stream=stream)
    gpu_ranks.knob("capturing", stream)
    refused("captured into a CUDA graph", comm.allreduce, there)
    refused("captured into a CUDA graph", comm.allreduce, there, async_op=True)
    comm.allreduce(x)
    gpu_ranks.knob("capturing", 0)
    refused("works on GPU 0; the array is on GPU 1", comm.allreduce, put(np.ones(6, np.float32), 1))
    x.strides = (8,)
    refused("is not C-contiguous", comm.allreduce, x)
    x.strides = None
    x.read_only = True
    refused("read-only", comm.allreduce, x)
    x.read_only = False
    refused("algorithm", comm.allreduce, x, algorithm="none")
    comm.allreduce(x, out=GpuArray(6, np.float32))
    assert (x.get() == comm.size ** 2).all()
    cuda.device(0).end_stream(stream)
    del x, there
"""


def test_what_cannot_be_is_refused(built: Path, tmp_path: Path) -> None:
    gpu_ranks.run(built, 2, WRONG, tmp_path, devices=2)


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
    gpus = "collectives.accelerated", "collectives.device", "transports.cuda", "kernels.cuda", "kernels.nvrtc"
    loaded = [name for name in gpus if f"hocket.{name}" in sys.modules]
    with open("/proc/self/maps") as maps:
        loaded += [line for line in maps if "libcuda" in line]
    say(loaded=loaded, why=comm.gpus.why_staged)
"""


def test_host_arrays_load_nothing_of_it(built: Path, tmp_path: Path) -> None:
    with faulty.job(2, HOST, tmp_path, {"LD_LIBRARY_PATH": str(built)}) as job:
        for end in job.wait(20):
            said = faulty.facts(end)
            assert said["loaded"] == [] and said["why"] is None
