"""A rank is killed: every survivor says who within a second, frees everything, and what does not need it goes on."""

from __future__ import annotations

import pathlib
import random
import signal
import time
from typing import Any

import pytest

from support.faulty import CALLS, all_ready, facts, job

LIMIT = 4.0
"""Seconds from the kill to the exception on every survivor: 0.1, and less than silence takes, 5."""
TRANSPORTS = ["shm", "tcp"]
ALIKE = {
    "reduce", "reduce_scatterv", "exscan", "allgatherv", "gather", "gatherv", "scatter", "scatterv", "alltoallv",
    "probe", "wait_any",
}  # fmt: skip
"""Calls that fail as others do."""


def survivors(source: str, victim: int, where: pathlib.Path, pause: float = 0.1) -> list[dict[str, Any]]:
    """Kill one of three ranks when all are ready: the words of the others, who know it in time."""
    with job(3, source, where) as run:
        all_ready(where, range(3))
        time.sleep(pause)
        killed = time.monotonic()
        run.signal(victim, signal.SIGKILL)
        ends = run.wait()
    assert ends[victim].code == -signal.SIGKILL
    found = [facts(ends[rank]) for rank in range(3) if rank != victim]
    for said in found:
        assert said["error"] == "PeerLostError" and said["ranks"] == [victim], said
        assert said["at"] - killed < LIMIT, (said["at"] - killed, said)
    return found


@pytest.mark.parametrize(
    ("name", "transport"),
    [
        pytest.param(name, transport, marks=[pytest.mark.more] * (name in ALIKE))
        for name in CALLS for transport in TRANSPORTS
    ],
)  # fmt: skip
def test_killed_in_the_middle(name: str, transport: str, tmp_path: pathlib.Path) -> None:
    dice = random.Random(f"{name}{transport}")
    victim = dice.choice([0, 0, 1, 2])  # rank 0 holds the coordinator
    for said in survivors(f"faulty.endure({name!r}, {transport!r})", victim, tmp_path, dice.uniform(0.0, 0.05)):
        assert f"rank {victim} is gone" in said["text"] and said["left"] == [], said


OTHERS_GO_ON = """
before = faulty.held()
comm = hocket.init(transport={transport!r})
pair = comm.split(0 if comm.rank != {victim} else None)
alone = comm.split(comm.rank)
mates = [r for r in range(comm.size) if r != {victim}]
x = np.arange(30000.0)
assert pair is None or pair.allreduce(x.copy())[7] == 7 * pair.size
late = pair and comm.rank == mates[-1]
ready()
with telling():
    if comm.rank == {victim}:
        time.sleep(60)
    work = comm.allreduce(x.copy(), async_op=True)
    work.wait()
assert comm.rank in mates
for i in range(300):
    assert np.array_equal(pair.allreduce(x.copy()), x * pair.size)
    assert pair.broadcast(np.array([i if pair.rank == 1 else -1]), root=1)[0] == i
y = np.empty_like(x)
pair.sendrecv(x + pair.rank, 1 - pair.rank, y, 1 - pair.rank)
assert y[0] == 1 - pair.rank
assert alone.allreduce(x.copy())[3] == 3
again = pair.dup()
assert again.allgather(np.array([comm.rank])).tolist() == mates
for c in (again, pair, alone, comm):
    c.close()
say(went_on=True, left=sorted(set(faulty.held()) - set(before)))
"""


@pytest.mark.parametrize(("victim", "transport"), [(0, "tcp"), (2, "shm")])
def test_communicators_without_the_lost_rank_go_on(transport: str, victim: int, tmp_path: pathlib.Path) -> None:
    for said in survivors(OTHERS_GO_ON.format(transport=transport, victim=victim), victim, tmp_path):
        assert said["went_on"] and said["left"] == [], said


TWO = """
comm = hocket.init(transport={transport!r})
comm.barrier()
ready()
with telling():
    while True:
        comm.allreduce(np.ones(1000))
with telling():
    comm.barrier()
comm.close()
"""


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_two_killed_at_once(transport: str, tmp_path: pathlib.Path) -> None:
    with job(4, TWO.format(transport=transport), tmp_path) as run:
        all_ready(tmp_path, range(4))
        run.signal(1, signal.SIGKILL)
        run.signal(3, signal.SIGKILL)
        ends = run.wait()
    for rank in (0, 2):
        said = facts(ends[rank])
        assert said["error"] == "PeerLostError" and set(said["ranks"]) <= {1, 3} and said["ranks"], said


FIRST_CALL = """
comm = hocket.init(transport={transport!r})
ready()
with telling():
    if comm.rank == {victim}:
        time.sleep(60)
    comm.allreduce(np.ones(1000), algorithm="ring")
comm.close()
"""


@pytest.mark.parametrize("victim", [0, 2])
def test_killed_before_the_first_call(victim: int, tmp_path: pathlib.Path) -> None:
    """The others wait for its stream, or dial it, and not in the engine yet."""
    survivors(FIRST_CALL.format(transport="tcp", victim=victim), victim, tmp_path)
