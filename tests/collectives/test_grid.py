"""Cartesian grids, beside mpi4py's."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import numpy as np
import pytest
import torch

import hocket
from hocket.errors import ArgumentError

Array = np.ndarray[Any, Any]


class Alone:
    """The part of a communicator that a Grid uses, for one of many ranks."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


def grid(rank: int, shape: tuple[int, ...], periodic: Any = False) -> hocket.Grid:
    alone: Any = Alone(rank, math.prod(shape))
    return hocket.Grid(alone, shape, periodic)


@pytest.mark.parametrize(("size", "axes", "shape"), [
    (12, 2, (4, 3)), (12, 3, (3, 2, 2)), (7, 2, (7, 1)), (1, 3, (1, 1, 1)), (16, 2, (4, 4)), (64, 3, (4, 4, 4)),
    (30, 3, (5, 3, 2)), (36, 2, (6, 6)), (5, 1, (5,)), (24, 3, (4, 3, 2)),
])  # fmt: skip
def test_shapes_as_of_mpis_dims_create(size: int, axes: int, shape: tuple[int, ...]) -> None:
    assert hocket.grid_shape(size, axes) == shape


@pytest.mark.parametrize("shape", [(6,), (2, 3), (3, 1, 2), (2, 2, 2)])
def test_ranks_and_places(shape: tuple[int, ...]) -> None:
    places = [*itertools.product(*map(range, shape))]
    for rank, place in enumerate(places):
        made = grid(rank, shape)
        assert made.coordinates == place == made.place(rank) and made.rank(*place) == rank


@pytest.mark.parametrize("ring", [False, True])
def test_neighbours(ring: bool) -> None:
    for rank in range(12):
        made = grid(rank, (3, 4), (False, ring))
        row, column = divmod(rank, 4)
        assert made.shift(0) == (rank - 4 if row else hocket.PROC_NULL, rank + 4 if row < 2 else hocket.PROC_NULL)
        for steps in (1, 2, -1):
            ends = [column - steps, column + steps]
            right = [row * 4 + c % 4 if ring or 0 <= c < 4 else hocket.PROC_NULL for c in ends]
            assert list(made.shift(1, steps)) == right


def test_rows_and_columns() -> None:
    def run(comm: hocket.Communicator) -> tuple[Any, ...]:
        made = hocket.Grid(comm, (2, 3))
        row, column, both = made.along(1), made.along(0), made.along(0, 1)
        return row.allreduce(comm.rank), column.allreduce(comm.rank), both.size, row.rank, column.rank

    for rank, found in enumerate(hocket.local_world(6).run(run)):
        row, column = divmod(rank, 3)
        assert found == (9 * row + 3, 2 * column + 3, 6, column, row)


def test_a_ring_of_halos() -> None:
    def run(comm: hocket.Communicator) -> float:
        before, after = hocket.Grid(comm, (comm.size,), True).shift(0)
        got = np.zeros(1)
        comm.sendrecv(np.array([float(comm.rank)]), after, got, before)
        return float(got[0])

    assert hocket.local_world(3).run(run) == [2.0, 0.0, 1.0]


def block(whole: Array, made: hocket.Grid, width: int) -> tuple[Array, Array]:
    """This rank's part of a large array: with NaN around it, and as it must be once the halo has come."""
    around = np.full([n + 2 * width for n in whole.shape], np.nan)
    around[(slice(width, -width),) * whole.ndim] = whole
    for axis, ring in enumerate(made.periodic):
        if ring:
            inner = np.moveaxis(around, axis, 0)
            inner[:width], inner[-width:] = inner[-2 * width : -width].copy(), inner[width : 2 * width].copy()
    lengths = [n // parts for n, parts in zip(whole.shape, made.shape, strict=True)]
    at = [(place * n, (place + 1) * n + 2 * width) for place, n in zip(made.coordinates, lengths, strict=True)]
    right = around[tuple(slice(*ends) for ends in at)].copy()
    mine, core = np.full(right.shape, np.nan), (slice(width, -width),) * whole.ndim
    mine[core] = right[core]
    return mine, right


@pytest.mark.parametrize("kind", [np.asarray, np.asfortranarray, torch.as_tensor], ids=["C", "Fortran", "torch"])
@pytest.mark.parametrize(("shape", "rings", "width"), [
    ((4,), (False,), 1), ((3,), (True,), 2), ((2, 3), (False, True), 1), ((2, 2, 2), (True, False, False), 2),
    ((1, 2), (True, True), 3),
])  # fmt: skip
def test_halos_come_with_their_corners(kind: Any, shape: tuple[int, ...], rings: tuple[bool, ...], width: int) -> None:
    whole = np.random.default_rng(1).random([7 * n for n in shape])

    def run(comm: hocket.Communicator) -> None:
        made = hocket.Grid(comm, shape, rings)
        mine, right = block(whole, made, width)
        given = kind(mine)
        for _ in range(2):
            assert made.exchange(given, width) is given
            np.testing.assert_array_equal(np.asarray(given), right)

    hocket.local_world(math.prod(shape)).run(run)


def test_blocks_that_have_no_room_for_a_halo_are_refused() -> None:
    one = grid(0, (1, 1))
    u: Any
    for u, width, why in (
        (np.zeros((3, 2)), 1, "3 * width"), (np.zeros((9, 9)), 0, "at least 1"), (np.zeros(9), 1, "at least 2 axes"),
        (3.0, 1, "got a float"), (np.zeros((9, 9)), 1.5, "whole"),
    ):
        with pytest.raises(ArgumentError, match=re.escape(why)):
            one.exchange(u, width)


def test_bad_grids_are_told() -> None:
    with pytest.raises(ArgumentError, match=r"shape=\(2, 2\) must multiply to 6"):
        hocket.Grid(grid(0, (6,)).comm, (2, 2))
    for wrong, why in (
        (lambda: grid(0, (2, 3), (True,)), "one for each"), (lambda: grid(0, (6,)).shift(1), "axis=1"),
        (lambda: grid(0, (2, 3)).rank(1), "one for each axis"), (lambda: grid(0, (2, 3)).along(2), "axes"),
        (lambda: hocket.grid_shape(0, 2), "at least 1"), (lambda: grid(0, (2, 3)).place(6), "not a rank"),
    ):
        with pytest.raises(ArgumentError, match=why):
            wrong()
