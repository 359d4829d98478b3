"""Outer loops whose members change: who is late is left out and comes back, and a newcomer has the others' bits."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import pytest

import hocket
from hocket.training import DiLoCo, digest
from hocket.training.outer.members import Again, Replica
from support.quadratic import flat, inner, start
from support.worlds import same

MEMBERS = ((0, 1, 2), (0, 1, 2), (0, 1), (0, 1), (0, 1, 2), (0, 1, 2, 3), (0, 2, 3))
"""The members of seven rounds, two steps each: rank 2 is late for the third and fourth, rank 3 comes, and rank 1 is
lost."""


class Scripted:
    """A crew that follows a script: who is behind takes the state of the most advanced."""

    def __init__(self, comm: Any, rounds: Sequence[tuple[int, ...]], at: int = 0) -> None:
        self.all, self.rounds, self.at, self.comm = comm, rounds, at, comm
        self.left_out: tuple[str, ...] = ()
        self.lost = False

    def boundary(self, state: Replica) -> bool:
        members = self.rounds[self.at]
        before = self.rounds[self.at - 1] if self.at else ()
        self.left_out = tuple(f"site {r}" for r in (0, 1, 2, 3) if r not in members)
        if members != before:
            self.comm = self.all.create_group(members, str(self.at))
            self._heal(state)
        self.at += 1
        return members != before

    def _heal(self, state: Replica) -> None:
        positions = self.comm.share(state.position)
        lead = positions.index(max(positions))
        numbers = self.comm.share(state.numbers())[lead]
        for array in state.arrays().values():
            copy = array.copy()
            self.comm.broadcast(copy, lead)
            if state.position < max(positions):
                array[...] = copy
        if state.position < max(positions):
            state.load(numbers)
        assert len(set(self.comm.share(digest(*state.arrays().values())))) == 1

    def attempt(self, state: Replica) -> Any:
        return contextlib.nullcontext()

    def present(self) -> Any:
        return self.comm


@pytest.mark.parametrize("settings", [{}, {"send": "topk:0.3"}, {"send": "randomk:0.3"}, {"weight": "count"}])
def test_members_that_come_and_go(settings: dict[str, Any]) -> None:
    def program(comm: hocket.Communicator) -> dict[int, Any]:
        theta, told = start(), {}
        crew = Scripted(comm, MEMBERS, at=5 if comm.rank == 3 else 0)
        outer = None if comm.rank == 3 else DiLoCo(crew, theta, every=2, momentum=0.5, **settings)
        for step in range(14):
            number = step // 2
            if comm.rank == 1 and number == 6:
                break
            if outer is None:
                if step == 11:  # it comes before the round that the others begin now, and has no part in it
                    outer = DiLoCo(crew, theta, every=2, momentum=0.5, **settings)
                    told[number] = (None, outer.phi.copy())
                continue
            inner(comm.rank, step, theta)
            if comm.rank == 2 and number in (2, 3):
                crew.at = 4
                continue
            report = outer.step()
            if report:
                told[number] = (report, outer.phi.copy())
                same(flat(theta), outer.phi, f"rank {comm.rank}, round {number}")
        return told

    with hocket.local_world(4) as world:
        told = world.run(program)
    for number, members in enumerate(MEMBERS):
        phis = [told[r][number][1] for r in members]
        for phi in phis[1:]:
            same(phi, phis[0], f"round {number}")
        report = told[members[0]][number][0]
        assert report.members == tuple(range(len(members)))
        assert report.left_out == tuple(f"site {r}" for r in range(4) if r not in members)
        idle = {4: 2, 5: 3}.get(number)  # who has just come has no part in the average
        parts = len(members) - (idle is not None)
        assert report.weights == tuple(0.0 if r == idle else 1 / parts for r in members), (number, report.weights)


def test_a_round_that_is_lost_is_begun_again() -> None:
    """`Again` from the crew: nothing has changed here, and the round is made with those who go on."""

    def program(comm: hocket.Communicator) -> None:
        class Losing(Scripted):
            """In its third round; both ranks know it."""

            def present(self) -> Any:
                if self.at == 2 and not self.lost:
                    self.lost = True
                    raise Again("rank 2 is lost")
                return self.comm

        theta = start()
        crew = Losing(comm, [(0, 1)] * 8)
        outer = DiLoCo(crew, theta, every=1, momentum=0.5)
        plain = start()
        other = DiLoCo(comm, plain, every=1, momentum=0.5)
        for step in range(4):
            inner(comm.rank, step, theta)
            inner(comm.rank, step, plain)
            outer.step()
            other.step()
            same(flat(theta), flat(plain), f"step {step}")
        assert crew.lost

    hocket.local_world(2).run(program)
