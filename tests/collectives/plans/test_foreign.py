"""An algorithm of the user's own is proven for the communicator's size before it moves a byte."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np
import pytest

import hocket
from hocket.algorithms import Algorithm, Recv, Send, Step, get, hierarchical
from hocket.algorithms.proof.first_use import proven
from hocket.collectives.communicator.communicator import Communicator
from hocket.errors import ScheduleError


def silent(rank: int, size: int, root: int) -> Iterator[Step]:
    yield ()


def waiting(rank: int, size: int, root: int) -> Iterator[Step]:
    """Each receives before it sends."""
    yield (Recv((rank - 1) % size, 0, reduce=True),)
    yield (Send((rank + 1) % size, 0),)


def raising(rank: int, size: int, root: int) -> Iterator[Step]:
    yield (Send((1, 0)[rank], 0), Recv((1, 0)[rank], 0, reduce=True))


def exchanging(rank: int, size: int, root: int) -> Iterator[Step]:
    """Right for two ranks."""
    yield (Send(1 - rank, 0), Recv(1 - rank, 0, reduce=True))


def made(steps: object, **more: object) -> Algorithm:
    return Algorithm("allreduce", steps.__name__, steps, lambda size: 1, **more)  # type: ignore[arg-type,attr-defined]


def endless(rank: int, size: int, root: int) -> Iterator[Step]:
    while True:
        yield ()


def not_ops(rank: int, size: int, root: int) -> Iterator[Step]:
    yield ((1 - rank, 0),)  # type: ignore[misc]


def not_whole(rank: int, size: int, root: int) -> Iterator[Step]:
    yield (Send((rank + 1) % size, 0.0), Recv((rank - 1) % size, 0.0, reduce=True))  # type: ignore[arg-type]


WRONG = {
    silent: r"allreduce silent, 3 ranks: at the end rank 0 chunk 0 holds \(0,\); expected each of \(0, 1, 2\) once",
    waiting: "allreduce waiting, 3 ranks: deadlock without buffering: rank 0 waits in step 0",
    raising: "allreduce raising, 3 ranks: its steps raise IndexError: tuple index out of range",
    endless: "allreduce endless, 3 ranks: rank 0 yields more than 100,000 steps; does it end",
    not_ops: r"allreduce not_ops, 3 ranks: \(1, 0\) is not a Send, Recv or Copy",
    not_whole: "allreduce not_whole, 3 ranks: its steps raise TypeError",
    exchanging: "allreduce exchanging, 3 ranks: rank 2 step 0: .* must name another rank of 0..2",
}


def test_a_wrong_one_is_refused_and_all_goes_on() -> None:
    def program(comm: Communicator) -> None:
        x = np.ones(5, np.float32)
        for steps, why in WRONG.items():
            for call in (comm.allreduce, lambda x, **how: comm.allreduce(x, async_op=True, **how)):
                with pytest.raises(ScheduleError, match=why):
                    call(x, algorithm=made(steps))
        assert (x == 1).all() and (comm.allreduce(x) == 3).all()

    hocket.local_world(3).run(program)


def once(rank: int, size: int, root: int) -> Iterator[Step]:
    """Its steps can be walked a single time, and so can the ops of each."""
    if rank in asked:
        return iter(())
    asked.append(rank)
    return iter([(op for op in step) for step in exchanging(rank, size, root)])  # type: ignore[misc]


asked: list[int] = []


def test_what_is_proven_is_what_runs() -> None:
    """It is walked once for a size, however often it is used."""
    algorithm = made(once)

    asked.clear()
    proven.cache_clear()
    proven(algorithm, 2, 0)
    hocket.local_world(2).run(lambda comm: [comm.allreduce(np.ones(n), algorithm=algorithm) for n in (5, 7, 5)])
    assert asked == [0, 1]
    assert hocket.local_world(2).run(lambda comm: comm.allreduce(np.ones(3), algorithm=algorithm)[0]) == [2, 2]


def test_what_is_made_of_a_foreign_one_is_foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hocket.algorithms.language.registry._known", {("allreduce", "silent"): made(silent)} | {
        (kind, name): get(kind, name) for kind, name in (("reduce", "direct"), ("broadcast", "direct"))
    })  # fmt: skip
    groups = ((0, 1), (2, 3))
    with pytest.raises(ScheduleError, match="allreduce hierarchical, 4 ranks: at the end"):
        hocket.local_world(4).run(
            lambda comm: comm.allreduce(np.ones(5), algorithm=hierarchical("allreduce", groups, outer="silent"))
        )


class Unhashable(list):  # type: ignore[type-arg]
    def __call__(self, rank: int, size: int, root: int) -> Iterator[Step]:
        return exchanging(rank, size, root)


def test_steps_without_a_hash() -> None:
    algorithm = Algorithm("allreduce", "unhashable", Unhashable(), lambda size: 1)
    hocket.local_world(2).run(lambda comm: comm.allreduce(np.ones(3), algorithm=algorithm))
    with pytest.raises(ScheduleError, match="allreduce unhashable, 3 ranks"):
        hocket.local_world(3).run(lambda comm: comm.allreduce(np.ones(3), algorithm=algorithm))


@pytest.mark.parametrize("name", ["ring", "direct"])
def test_hockets_own_are_not_walked_and_copies_of_them_are(name: str) -> None:
    own = get("allreduce", name)
    assert own.own and hierarchical("allreduce", ((0, 1), (2, 3)), outer=name).own
    for copy in (dataclasses.replace(own), dataclasses.replace(own, steps=functools.wraps(own.steps)(silent))):
        assert not copy.own
    with pytest.raises(ScheduleError, match="expected each of"):
        hocket.local_world(3).run(lambda comm: comm.allreduce(np.ones(3), algorithm=copy))
