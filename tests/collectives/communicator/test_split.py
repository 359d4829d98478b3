"""split, dup, subgroup: who is in, in which order, and that all communicators work beside each other."""

from __future__ import annotations

import functools
import zlib
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.collectives.members.members import channels_name
from hocket.errors import ArgumentError
from support import jobs
from support.worlds import PATH, Program, in_threads, same, spread


def members(made: Communicator) -> list[int]:
    """The parent's ranks, as an allgather over the new communicator tells them."""
    return [int(r) for r in made.allgather(np.array([made.world.rank]))]


def works(made: Communicator) -> None:
    """Every kind of call, over this communicator alone."""
    x = np.arange(40_000.0) + made.rank
    same(made.allreduce(x.copy()), made.size * np.arange(40_000.0) + sum(range(made.size)), f"allreduce on {made!r}")
    same(made.broadcast(x.copy(), made.size - 1), np.arange(40_000.0) + made.size - 1, f"broadcast on {made!r}")
    out = np.empty_like(x)
    left = (made.rank - 1) % made.size
    made.sendrecv(x, (made.rank + 1) % made.size, out, left)
    same(out, np.arange(40_000.0) + left, f"sendrecv on {made!r}")
    made.barrier()


def colors(comm: Communicator) -> None:
    made = comm.split(comm.rank % 2)
    assert made is not None
    assert members(made) == [r for r in range(comm.size) if r % 2 == comm.rank % 2]
    assert made.rank == comm.rank // 2
    works(made)
    backwards = comm.split(0, key=-comm.rank)
    assert backwards is not None and members(backwards) == list(range(comm.size))[::-1]
    works(backwards)
    same(backwards.scan(np.ones(1)), np.full(1, comm.size - comm.rank, float), "scan backwards")
    ties = comm.split(7, key=comm.rank // 2)
    assert ties is not None and members(ties) == list(range(comm.size))
    for c in (made, backwards, ties):
        c.close()
    with pytest.raises(ArgumentError, match="closed"):
        made.barrier()
    works(comm)


def no_color(comm: Communicator) -> None:
    made = comm.split(None if comm.rank == 0 else 5)
    if comm.rank == 0:
        assert made is None
    else:
        assert made is not None and members(made) == list(range(1, comm.size))
        works(made)
    assert comm.split(None) is None
    works(comm)


def made_by_members(comm: Communicator) -> None:
    """Members alone make a group; the others do something else meanwhile, and take no part."""
    ranks = list(range(comm.size))[::-1][: max(1, comm.size - 1)]
    if comm.rank in ranks:
        made = comm.create_group(ranks, "backwards")
        assert members(made) == ranks and made.rank == ranks.index(comm.rank)
        works(made)
        again = comm.create_group(ranks, "another")
        works(again)
        works(made)
        again.close()
        made.close()
    else:
        with pytest.raises(ArgumentError, match="must name 0"):
            comm.create_group(ranks, "without me")
    works(comm)


def groups_of_ranks(comm: Communicator) -> None:
    last = comm.size - 1
    for ranks in ([0], [last, 0][-comm.size :], list(range(comm.size))[::-1]):
        made = comm.subgroup(ranks)
        assert (made is None) == (comm.rank not in ranks)
        if made is not None:
            assert members(made) == ranks and made.rank == ranks.index(comm.rank)
            works(made)
            made.close()
    with pytest.raises(ArgumentError):
        comm.subgroup([0, comm.size])
    with pytest.raises(ArgumentError, match="twice"):
        comm.subgroup([0, 0])
    works(comm)


def nested(comm: Communicator) -> None:
    """Children of children, made and used until one rank is left."""
    current: Communicator = comm
    made = []
    while current.size > 1:
        child = current.split(0 if current.rank < (current.size + 1) // 2 else 1, key=-current.rank)
        assert child is not None
        works(child)
        made.append(child)
        current = child
    works(comm)
    for child in reversed(made):
        child.close()
    works(comm)


def beside_the_parent(comm: Communicator) -> None:
    """Works in flight on parent, duplicate and halves, issued in a different order on each rank."""
    twin = comm.dup()
    half = comm.split(comm.rank % 2)
    assert half is not None and twin.size == comm.size and twin.rank == comm.rank
    mine: list[Communicator] = [comm, twin, half]
    mine = mine[comm.rank % 3 :] + mine[: comm.rank % 3]
    for i in range(10):
        issued = [(c, c.allreduce(np.full(30_000, float(c.rank + i)), async_op=True)) for c in mine]
        for c, work in reversed(issued):
            want = sum(range(c.size)) + i * c.size
            assert (work.result() == want).all(), f"{c!r}, round {i}"
    # a thread for each communicator, blocking calls
    def drive(c: Communicator) -> None:
        for i in range(50):
            got = c.allreduce(np.full(100, float(i)))
            assert (got == i * c.size).all(), f"{c!r} in its own thread, round {i}"

    in_threads(*(functools.partial(drive, c) for c in mine))
    works(comm)


def neighbours(comm: Communicator) -> None:
    """All are on this host, whichever transport is used; of a part its own ranks count."""
    assert (comm.host, comm.local_rank, comm.local_size) == (0, comm.rank, comm.size)
    half = comm.split(comm.rank % 2, key=-comm.rank)
    assert half is not None
    assert (half.host, half.local_rank, half.local_size) == (0, half.rank, half.size)
    here = comm.split(comm.host)
    assert here is not None and members(here) == list(range(comm.size))


def test_neighbours_by_who_shares_a_host() -> None:
    """Hosts are numbered by their first ranks in the communicator, whatever the order of the world's."""

    def call(comm: Communicator) -> list[tuple[int, int, int]]:
        comm.world.hosts = ((0, 3), (1, 4), (2,))
        backwards = comm.subgroup([4, 2, 1, 0])
        found = [(comm.host, comm.local_rank, comm.local_size)]
        return found if backwards is None else [*found, (backwards.host, backwards.local_rank, backwards.local_size)]

    with hocket.local_world(5) as world:
        found = world.run(call)
    assert [each[0] for each in found] == [(0, 0, 2), (1, 0, 2), (2, 0, 1), (0, 1, 2), (1, 1, 2)]
    assert [each[1] for each in found if each[1:]] == [(2, 0, 1), (0, 1, 2), (1, 0, 1), (0, 0, 2)]


CHECKS: tuple[Program, ...] = (
    colors, no_color, groups_of_ranks, made_by_members, nested, beside_the_parent, neighbours,
)  # fmt: skip


@pytest.mark.parametrize(
    ("size", "transport"), [(1, "threads"), (2, "threads"), (5, "threads"), (4, "shm"), (3, "tcp"), (3, "reference")]
)
def test_new_communicators(size: int, transport: str) -> None:
    spread(CHECKS, size, transport)


INITS = """
import numpy as np, os, hocket
size, rank = int(os.environ["HOCKET_SIZE"]), int(os.environ["HOCKET_RANK"])
place = os.environ["HOCKET_RENDEZVOUS"]
one = hocket.init(rank, size, place + "-a")
two = hocket.init(size - 1 - rank, size, place + "-b", make_default=False)
three = hocket.init(rank, size, place + "-c", transport="tcp", make_default=False)
assert hocket.communicator() is one and (two.rank, three.rank) == (size - 1 - rank, rank)
comms = [one, two, three]
for i in range(20):
    order = comms[(rank + i) % 3:] + comms[:(rank + i) % 3]
    for comm, work in [(c, c.allreduce(np.full(5000, 1.0 + c.rank), async_op=True)) for c in order]:
        assert (work.result() == size * (size + 1) / 2).all(), comm
two.close()
assert one.allreduce(np.ones(3))[0] == size and three.allreduce(np.ones(3))[0] == size
one.close()
assert three.allreduce(np.ones(3))[0] == size
three.close()
again = hocket.init(rank, size, place + "-d")
assert hocket.rank() == rank and hocket.allreduce(np.ones(3))[0] == size
again.close()
"""


def test_several_inits_in_one_process() -> None:
    jobs.run(3, INITS, PYTHONPATH=PATH)


def test_names_and_groups() -> None:
    def call(comm: Communicator) -> Any:
        child = comm.split(comm.rank % 2)
        assert child is not None and child.name != comm.name
        assert sorted(r for g in child.groups for r in g) == list(range(child.size))
        return repr(child)

    with hocket.local_world(4) as world:
        texts = world.run(call)
    assert len(set(texts)) == 4 and all("of 2" in text for text in texts)


def test_names_of_lanes_differ_where_checksums_do_not() -> None:
    """Some of 200,000 communicators share a CRC-32; their lanes must not share a name, or streams would cross."""
    names = [f"world/{i % 97}.{i}/{i * i % 1009}.{i * 7 % 31}|collectives|None" for i in range(200_000)]
    assert len({zlib.crc32(name.encode()) for name in names}) < len(names)
    made = [channels_name(name) for name in names]
    assert len(set(made)) == len(made) and {len(name) for name in made} == {10}
