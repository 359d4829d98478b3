"""Descriptors, threads, mappings and memory stay where they were, whatever is made and closed."""

from __future__ import annotations

import pathlib

import pytest

from support.cases import more
from support.faulty import facts, job

TRANSPORTS = ["shm", "tcp"]

COMMUNICATORS = """
comm = hocket.init(transport={transport!r})

def once(i):
    x = np.ones(3000)
    made = [comm.dup(), comm.split(comm.rank % 2), comm.subgroup([0, 2])]
    for c in made:
        if c is not None:
            assert c.allreduce(x.copy())[0] == c.size
            c.barrier(async_op=True).wait()
    made[0].sendrecv(x, (comm.rank + 1) % 3, np.empty_like(x), (comm.rank - 1) % 3)
    for c in made:
        if c is not None:
            c.close()

for i in range({warm}):
    once(i)
comm.barrier()
before = faulty.count()
for i in range({rounds}):
    once(i)
comm.barrier()
say(before=before, after=faulty.count(before))
comm.close()
"""


@pytest.mark.parametrize(
    ("transport", "encrypt"),
    [*((each, "0") for each in TRANSPORTS), *more(("tcp", "1"))],
)
def test_communicators(transport: str, encrypt: str, tmp_path: pathlib.Path) -> None:
    """Sixty communicators a rank: one descriptor or thread of one round shows, and a fifth of a MB."""
    # What OpenSSL keeps grows to 12 MB in the first 40 rounds, and no more in 280 further ones.
    source = COMMUNICATORS.format(transport=transport, warm=50 if encrypt == "1" else 10, rounds=20)
    with job(3, source, tmp_path, {"HOCKET_ENCRYPT": encrypt}) as run:
        for end in run.wait(60):
            same(facts(end), rss=5 << 20)


DROPPED = """
import gc, time
comm = hocket.init(transport={transport!r})

def once(i):
    x = np.ones(3000)
    made = comm.dup() if i % 3 else comm.split(0 if comm.rank < 2 else None)
    if made is not None and i % 2:
        assert made.allreduce(x)[0] == made.size
        made.send(x, (made.rank + 1) % made.size) if made.rank == 0 else None
        made.recv(x, 0) if made.rank == 1 else None

def held(most=1 << 20):
    gc.collect()
    comm.barrier()
    until = time.monotonic() + 5  # another thread closes what was dropped
    while len(faulty.descriptors()) > most and time.monotonic() < until:
        time.sleep(0.01)
    window = getattr(comm.world.transports[{transport!r}], "window", None)
    return dict(fds=len(faulty.descriptors()), window=window.size if window else 0)

for i in range(200):
    once(i)
before, largest = held(), 0
for i in range({rounds}):
    once(i)
    if i % 100 == 0:
        largest = max(largest, len(faulty.descriptors()))
say(before=before, after=held(before["fds"]), largest=largest)
comm.close()
"""


@pytest.mark.parametrize(
    ("transport", "rounds"),
    [("shm", 100), *more(("shm", 2000), ("tcp", 2000))],
)
def test_communicators_that_are_dropped(transport: str, rounds: int, tmp_path: pathlib.Path) -> None:
    """Nobody closes them; what is collected gives its memory and sockets back when all its ranks have dropped it."""
    with job(3, DROPPED.format(transport=transport, rounds=rounds), tmp_path) as run:
        for end in run.wait(100):
            said = facts(end)
            assert said["largest"] <= said["before"]["fds"] + 50, said
            assert said["after"]["fds"] <= said["before"]["fds"] + 12, said
            assert said["after"]["window"] <= said["before"]["window"] + (16 << 20), said


def same(said: dict[str, dict[str, int]], rss: int) -> None:
    before, after = said["before"], said["after"]
    assert after["fds"] <= before["fds"] and after["threads"] == before["threads"], said
    assert after["names"] == before["names"], said
    assert after["maps"] <= before["maps"] + 10, said  # the allocator may take an arena more
    assert after["rss"] - before["rss"] < rss, said


AGAIN = """
import os

def once(i):
    address = os.environ["HOCKET_RENDEZVOUS"] + str(i)
    comm = hocket.init(int(os.environ["HOCKET_RANK"]), 3, address, transport={transport!r})
    assert comm.allreduce(np.full(30000, 1.0))[0] == 3
    comm.allreduce(np.ones(3), async_op=True).wait()
    comm.close()

for i in range(4):
    once(i)
before = faulty.count()
for i in range(4, 16):
    once(i)
after = faulty.count(before)
say(before=before, after=after)
"""


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_init_and_close(transport: str, tmp_path: pathlib.Path) -> None:
    with job(3, AGAIN.format(transport=transport), tmp_path) as run:
        for end in run.wait(60):
            said = facts(end)
            same(said, rss=5 << 20)
            # One for asynchronous calls per process; nothing of the control plane.
            assert set(said["after"]["names"]) <= {"MainThread", "hocket-pool"}, said


MIXED = """
import random

comm = hocket.init(transport={transport!r})
dice = random.Random(3)
names = ["allreduce", "broadcast", "reduce", "allgather", "alltoall", "barrier", "sendrecv", "scan", "gather", "async"]

def some(n):
    for i in range(n):
        faulty.CALLS[dice.choice(names)](comm, np.ones(dice.choice([3, 12, 600, 900, 6000])))
        if i % 50 == 0:
            try:
                comm.allreduce(np.ones((4, 4))[:, 1])
            except hocket.ArgumentError:
                pass
            comm.send(np.ones(5), (comm.rank + 1) % 3, tag=9)  # set aside by the receiver, then taken
            comm.send(np.ones(6), (comm.rank + 1) % 3, tag=8)
            comm.recv(np.ones(6), (comm.rank - 1) % 3, tag=8)
            comm.recv(np.ones(5), (comm.rank - 1) % 3, tag=9)

some({warm})
before = faulty.count()
some({calls})
say(before=before, after=faulty.count(before))
comm.close()
"""


@pytest.mark.parametrize(
    ("transport", "calls"), [("shm", 1_500), *more(("shm", 20_000)), ("tcp", 1_600)]
)
def test_mixed_calls(transport: str, calls: int, tmp_path: pathlib.Path) -> None:
    warm = max(2_000, calls // 2) if transport == "shm" else calls // 4  # circles have grown by then
    with job(3, MIXED.format(transport=transport, calls=calls, warm=warm), tmp_path) as run:
        for end in run.wait(110):
            same(facts(end), rss=3 << 20)
