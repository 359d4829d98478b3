"""A rank with GPU arrays is killed, late or interrupted: the others' streams and hosts end, and the error names it."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from support import faulty
from support.gpu import ranks as gpu_ranks
from support.gpu.cases import BY_EVENTS, DELAY, KILLED, REPEATED, killed_in

CLOSED = """
comm.close()
say(at_end=time.monotonic())
"""
FREED = CLOSED + """
del xs  # waits for all streams
while gpu_ranks.count("ipc_maps") or gpu_ranks.count("streams"):
    time.sleep(0.01)
say(misuses=gpu_ranks.count("misuses"), at_end=time.monotonic())
"""
FEW_RELEASES = """
from hocket.collectives.gpu import context
context.RELEASES = 5
"""


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
    how = {"count": count, "call": REPEATED[call], "pause": delay / 500_000, "after": CLOSED if size == 4 else FREED}
    killed_in(KILLED.format(before=FEW_RELEASES, **how), size, delay, built, tmp_path)


@pytest.mark.parametrize("call", ["blocking", pytest.param("asynchronous", marks=pytest.mark.gpu)])
def test_a_rank_is_killed_while_others_wait_for_events(call: str, built: Path, tmp_path: Path) -> None:
    """No stream waits for those of a peer: what it has not done by then is not waited for."""
    source = KILLED.format(count=70_001, call=REPEATED[call], before=FEW_RELEASES + BY_EVENTS, after=FREED, pause=0)
    killed_in(source, 3, 30_000, built, tmp_path)


OUTSIDE = """
comm = hocket.init()
x = put(np.ones(70_001, np.float32))
for _ in range(20):
    comm.allreduce(x)
faulty.ready()
if comm.rank == 1:
    for other in (0, 2):  # who loses a rank before that does not come so far
        faulty.await_file(f"ready-{other}")
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
        ends = job.wait()
    for rank in (0, 2):
        said = faulty.facts(ends[rank])
        assert said["error"] == "PeerLostError" and said["at_end"] - began < 20, said


LATE = """
comm = hocket.init()
x = put(np.ones(1000, np.float32))
comm.allreduce(x)
with telling():
    while comm.rank == 1 and comm.reporter.state.verdict is None:
        time.sleep(0.01)
    comm.allreduce(x, timeout=3)
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
    if self.where and {stage!r} == "opening":
        time.sleep(0.5)  # the other has opened it
        if second:
            {how}
        time.sleep(0.5)

Proof.wait, Queue.accept = waiting, accepting
comm = hocket.init()
x = put(np.ones(1000, np.float32))
with telling():
    comm.allreduce(x, timeout=60)
del x  # waits for all streams
say(at_end=time.monotonic(), streams=gpu_ranks.count("streams"), maps=gpu_ranks.count("ipc_maps"))
"""
KILL, INTERRUPT = "os.kill(os.getpid(), 9)", "raise KeyboardInterrupt"


@pytest.mark.parametrize(("stage", "how"), [("trial", KILL), ("trial", INTERRUPT), ("opening", KILL)])
def test_a_rank_is_lost_in_the_first_call(stage: str, how: str, built: Path, tmp_path: Path) -> None:
    """Where streams wait for words already, or when all is made and the engine is not yet known: nobody hangs."""
    began = time.monotonic()
    with gpu_ranks.job(built, 2, FIRST.format(stage=stage, how=how), tmp_path) as job:
        ends = job.wait()
    said = faulty.facts(ends[0])
    assert said["error"] == "PeerLostError" and said["ranks"] == [1] and said["at_end"] - began < 40, said  # 2 s, alone
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
AFTER_THE_BARRIER = """from hocket.collectives.communicator.ending import Ending
    barrier = Ending._last_barrier
    Ending._last_barrier = lambda self, timeout: (barrier(self, timeout), os.kill(os.getpid(), 9))"""


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
        ends = job.wait()
    assert ends[1].code == -signal.SIGKILL, ends[1]
    assert faulty.facts(ends[0])["done"]


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
        ends = job.wait()
    assert all(faulty.facts(ends[rank])["done"] for rank in (0, 1, 3))


NO_COMPILER = """
from hocket.system.cuda import nvrtc
if os.environ["HOCKET_RANK"] == "1":
    nvrtc.places = lambda *_: iter(())
comm = hocket.init()
x = put(np.ones(1000, np.float32))
with telling():
    comm.allreduce(x, timeout=60)
"""


def test_a_rank_without_a_compiler(built: Path, tmp_path: Path) -> None:
    for rank, said in enumerate(gpu_ranks.run(built, 2, NO_COMPILER, tmp_path)):
        assert said["error"] == ("TransportError" if rank else "PeerLostError"), said
        assert "pip install nvidia-cuda-nvrtc" in said["text"], said
