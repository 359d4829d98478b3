"""Cartesian grids of ranks: who is next to whom.  MPI's Cart_create, Dims_create, Cart_shift and Cart_sub."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hocket.arguments import rank_in, wholes
from hocket.collectives.communicator.communicator import Communicator
from hocket.errors import ArgumentError


def grid_shape(size: int, axes: int) -> tuple[int, ...]:
    """`size` as a product of so many numbers, as equal as they can be, the largest first.  MPI's Dims_create.

    >>> import hocket
    >>> hocket.grid_shape(12, 2), hocket.grid_shape(7, 2)
    ((4, 3), (7, 1))
    """
    if size < 1 or axes < 1:
        raise ArgumentError(f"grid_shape({size}, {axes}): both must be at least 1")
    if axes == 1:
        return (size,)
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    shapes = ((first, *grid_shape(size // first, axes - 1)) for first in divisors if first**axes >= size)
    return min((tuple(sorted(shape, reverse=True)) for shape in shapes), key=lambda shape: (shape[0], sum(shape)))


class Grid:
    """The ranks of `comm` as a grid: the last axis is that of neighbouring ranks, as in C arrays.

    `shape`: ranks along each axis, whose product is comm.size.  `periodic`: of each axis, or of all: does it close to a
    ring?  Local: nothing is sent.  Raises ArgumentError.

    >>> import hocket
    >>> grid = hocket.local_world(6).run(lambda comm: hocket.Grid(comm, (2, 3), periodic=(False, True)))[4]
    >>> grid.coordinates, grid.rank(0, 2), grid.shift(0), grid.shift(1)
    ((1, 1), 2, (1, None), (3, 5))
    """

    def __init__(self, comm: Communicator, shape: Sequence[int], periodic: bool | Sequence[bool] = False) -> None:
        self.comm, self.shape = comm, tuple(wholes(shape, "shape"))
        if any(n < 1 for n in self.shape) or math.prod(self.shape) != comm.size:
            raise ArgumentError(f"shape={self.shape} must have {comm.size} places, one for each rank")
        rings = [periodic] * len(self.shape) if isinstance(periodic, bool) else [bool(each) for each in periodic]
        if len(rings) != len(self.shape):
            raise ArgumentError(f"periodic={periodic} must be one truth value, or one for each of {len(rings)} axes")
        self.periodic = tuple(rings)

    @property
    def coordinates(self) -> tuple[int, ...]:
        """This rank's place."""
        return self.place(self.comm.rank)

    def place(self, rank: int) -> tuple[int, ...]:
        """A rank's coordinates."""
        rank, found = rank_in(self.comm.size, rank, "rank"), []
        for length in reversed(self.shape):
            rank, at = divmod(rank, length)
            found.append(at)
        return tuple(reversed(found))

    def rank(self, *coordinates: int) -> int | None:
        """The rank at these coordinates: on a periodic axis they go round, on another one None is outside."""
        if len(coordinates) != len(self.shape):
            raise ArgumentError(f"coordinates {coordinates} must be {len(self.shape)}, one for each axis")
        found = 0
        for at, length, ring in zip(wholes(coordinates, "coordinates"), self.shape, self.periodic, strict=True):
            if not ring and not 0 <= at < length:
                return None
            found = found * length + at % length
        return found

    def shift(self, axis: int, steps: int = 1) -> tuple[int | None, int | None]:
        """The ranks `steps` before this one and after it, along an axis: from whom to receive, to whom to send."""
        if not 0 <= axis < len(self.shape):
            raise ArgumentError(f"axis={axis} is outside of 0..{len(self.shape) - 1}")

        def moved(by: int) -> int | None:
            here = list(self.coordinates)
            here[axis] += by
            return self.rank(*here)

        return moved(-steps), moved(steps)

    def along(self, *axes: int) -> Communicator:
        """The communicator of the ranks that differ from this one on these axes only.  All ranks call it.

        A row of a matrix of ranks is `along(1)`, in the order of its columns.
        """
        if any(not 0 <= axis < len(self.shape) for axis in axes):
            raise ArgumentError(f"axes={axes} must each be one of 0..{len(self.shape) - 1}")
        color = 0
        for axis, (at, length) in enumerate(zip(self.coordinates, self.shape, strict=True)):
            color = color if axis in axes else color * length + at
        made = self.comm.split(color)
        assert made is not None
        return made
