"""Cartesian grids of ranks: who is next to whom.  MPI's Cart_create, Dims_create, Cart_shift and Cart_sub."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from hocket.arguments import kind, rank_in, whole, wholes
from hocket.collectives.communicator.communicator import Communicator
from hocket.collectives.communicator.messenger import PROC_NULL
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
    >>> grid.coordinates, grid.rank(0, 2), grid.shift(1), grid.shift(0) == (1, hocket.PROC_NULL)
    ((1, 1), 2, (3, 5), True)
    """

    def __init__(self, comm: Communicator, shape: Sequence[int], periodic: bool | Sequence[bool] = False) -> None:
        self.comm, self.shape = comm, tuple(wholes(shape, "shape"))
        if any(n < 1 for n in self.shape) or math.prod(self.shape) != comm.size:
            raise ArgumentError(f"shape={self.shape} must multiply to {comm.size}, a place for each rank")
        rings = [periodic] * len(self.shape) if isinstance(periodic, bool) else [bool(each) for each in periodic]
        if len(rings) != len(self.shape):
            raise ArgumentError(f"periodic={periodic} must be a bool, or one for each of {len(rings)} axes")
        self.periodic = tuple(rings)

    @property
    def coordinates(self) -> tuple[int, ...]:
        """This rank's place."""
        return self.place(self.comm.rank)

    def place(self, rank: int) -> tuple[int, ...]:
        """A rank's coordinates."""
        rank, coordinates = rank_in(self.comm.size, rank, "rank"), []
        for length in reversed(self.shape):
            rank, at = divmod(rank, length)
            coordinates.append(at)
        return tuple(reversed(coordinates))

    def rank(self, *coordinates: int) -> int:
        """The rank at these coordinates.  A periodic axis closes to a ring; PROC_NULL where another one ends."""
        if len(coordinates) != len(self.shape):
            raise ArgumentError(f"coordinates {coordinates} must have {len(self.shape)} numbers, one for each axis")
        rank = 0
        for at, length, ring in zip(wholes(coordinates, "coordinates"), self.shape, self.periodic, strict=True):
            if not ring and not 0 <= at < length:
                return PROC_NULL
            rank = rank * length + at % length
        return rank

    def shift(self, axis: int, steps: int = 1) -> tuple[int, int]:
        """The ranks `steps` before this one and after it, along an axis: from whom to receive, to whom to send.

        PROC_NULL where there is none: messages to it and from it are no messages.
        """
        if not 0 <= axis < len(self.shape):
            raise ArgumentError(f"axis={axis} must be 0 to {len(self.shape) - 1}")

        def moved(by: int) -> int:
            here = list(self.coordinates)
            here[axis] += by
            return self.rank(*here)

        return moved(-steps), moved(steps)

    def exchange(self, u: Any, width: int = 1, tag: int = 0) -> Any:
        """Fill the halo of `u`: the `width` outer layers at both ends of its first axes, one for each of the grid's.

        Each rank holds a block of a large array, with layers around it for its neighbours' outermost cells.  They come
        from the neighbours, axis by axis, so corners come too.  Layers with no neighbour behind them stay as they are.
        u, an array with at least 3 * width elements on these axes, is written in place and returned.  All ranks call
        it; where two blocks meet they have the same lengths.  It sends messages with `tag` and tag + 1.  Raises
        ArgumentError, on this rank alone.  Cost: two messages of a face per axis.

        >>> import hocket, numpy as np
        >>> def halo(comm):
        ...     u = np.array([0.0, comm.rank + 1, comm.rank + 1, 0.0])
        ...     return hocket.Grid(comm, (comm.size,)).exchange(u).tolist()
        >>> hocket.local_world(3).run(halo)
        [[0.0, 1.0, 1.0, 2.0], [1.0, 2.0, 2.0, 3.0], [2.0, 3.0, 3.0, 0.0]]
        """
        width, lengths = whole(width, "width"), getattr(u, "shape", None)
        if lengths is None or len(lengths) < len(self.shape):
            got = kind(u) if lengths is None else f"shape {tuple(lengths)}"
            raise ArgumentError(f"exchange: u must be an array with at least {len(self.shape)} axes, got {got}")
        if width < 1 or any(length < 3 * width for length in lengths[: len(self.shape)]):
            raise ArgumentError(
                f"exchange: width={width} must be at least 1, and u, of shape {tuple(lengths)}, must have 3 * width "
                f"elements or more on its first {len(self.shape)} axes: two halos, and what is sent between them"
            )
        for axis in range(len(self.shape)):
            before, after = self.shift(axis)
            at = [(*(slice(None),) * axis, slice(n * width, (n + 1) * width or None)) for n in (0, 1, -2, -1)]
            low_halo, low, high, high_halo = (u[where] for where in at)
            self._face(high, after, low_halo, before, tag)
            self._face(low, before, high_halo, after, tag + 1)
        return u

    def _face(self, x: Any, dest: int, out: Any, source: int, tag: int) -> None:
        """Exchange one face by sendrecv.  Of NumPy arrays it makes contiguous copies, which take the short way of
        messages."""
        if type(out) is not numpy.ndarray or out.flags.c_contiguous:
            self.comm.sendrecv(x, dest, out, source, tag)
            return
        come = numpy.empty(out.shape, out.dtype)
        self.comm.sendrecv(numpy.ascontiguousarray(x), dest, come, source, tag)
        if source != PROC_NULL:
            out[...] = come

    def along(self, *axes: int) -> Communicator:
        """The communicator of the ranks that differ from this one on these axes only.  All ranks call it.

        A row of a matrix of ranks is `along(1)`, in the order of its columns.
        """
        if any(not 0 <= axis < len(self.shape) for axis in axes):
            raise ArgumentError(f"axes={axes} must each be one of 0..{len(self.shape) - 1}")
        color = 0
        for axis, (at, length) in enumerate(zip(self.coordinates, self.shape, strict=True)):
            color = color if axis in axes else color * length + at
        comm = self.comm.split(color)
        assert comm is not None
        return comm
