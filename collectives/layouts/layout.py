"""`Layout`: which boxes of a global array each rank holds."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from hocket.arguments import kind, whole, wholes
from hocket.collectives.layouts.boxes import Box, inside, plain
from hocket.errors import ArgumentError

MANY = 10_000
"""Boxes that a constructor makes of one array on one rank, at most."""


class Layout:
    """A global array of `shape`, of which each rank holds boxes: parts of it, one array each.

    `boxes[rank]`: a list of boxes, a box a tuple of slices, one for each axis, with a step where it is strided.  A rank
    may hold none, and boxes of several ranks may be the same (replicas) or overlap (halos).  Ranks behind the last one
    of `boxes` hold none.  Nothing is sent, and no array is held.  Raises ArgumentError for a box that is not inside of
    the shape.

    >>> import hocket
    >>> halves = hocket.Layout((4, 6), [[(slice(0, 2), slice(0, 6))], [(slice(2, 4), slice(0, 6))]])
    >>> halves == hocket.Layout.cut((4, 6), 2), halves.shapes(1)
    (True, [(2, 6)])
    """

    def __init__(self, shape: Sequence[int], boxes: Sequence[Sequence[Sequence[slice]]]) -> None:
        self.shape = _shape(shape)
        if isinstance(boxes, (str, bytes, Mapping)) or not isinstance(boxes, Sequence):
            raise ArgumentError(f"boxes must be a list with a list of boxes for each rank, got {kind(boxes)}")
        self.ranges: tuple[tuple[Box, ...], ...] = tuple(
            tuple(_box(self.shape, box, rank) for box in _listed(own, rank)) for rank, own in enumerate(boxes)
        )
        """The boxes as ranges: a box is a tuple of ranges."""

    @classmethod
    def of_ranges(cls, shape: Sequence[int], ranges: Iterable[Iterable[Box]]) -> Layout:
        """One whose boxes are tuples of ranges, by rank, which are inside of the shape."""
        made = cls(shape, [])
        made.ranges = tuple(tuple(tuple(map(plain, box)) for box in own) for own in ranges)
        return made

    # --- layouts that people have

    @classmethod
    def replicated(cls, shape: Sequence[int], size: int) -> Layout:
        """Each of `size` ranks holds all."""
        full = tuple(range(n) for n in _shape(shape))
        return cls.of_ranges(shape, [[full]] * _size(size))

    @classmethod
    def cut(cls, shape: Sequence[int], size: int, axis: int = 0, lengths: Sequence[int] | None = None) -> Layout:
        """Each of `size` ranks holds a part along `axis`: of these lengths, or as equal as they can be.

        The first ranks have one more where they cannot be equal, as `numpy.array_split` has it.

        >>> import hocket
        >>> hocket.Layout.cut((7,), 3).shapes(0), hocket.Layout.cut((7,), 2, lengths=[6, 1]).shapes(1)
        ([(3,)], [(1,)])
        """
        shape, size = _shape(shape), _size(size)
        axis = _axis(shape, axis)
        each, more = divmod(shape[axis], size)
        parts = wholes(lengths, "lengths") if lengths is not None else [each + (r < more) for r in range(size)]
        if len(parts) != size or sum(parts) != shape[axis] or min(parts) < 0:
            raise ArgumentError(f"lengths={parts} must be {size} lengths that add up to {shape[axis]}, axis {axis}")
        ends = list(itertools.accumulate(parts))
        return cls.of_ranges(shape, [
            [_part(shape, {axis: range(end - n, end)})] for n, end in zip(parts, ends, strict=True)
        ])  # fmt: skip

    @classmethod
    def cyclic(cls, shape: Sequence[int], size: int, axis: int = 0, block: int = 1) -> Layout:
        """Blocks along `axis` are dealt to `size` ranks in turns (ScaLAPACK's block-cyclic).  Blocks of one: a step."""
        shape, size, block = _shape(shape), _size(size), whole(block, "block")
        axis = _axis(shape, axis)
        if block < 1:
            raise ArgumentError(f"block={block} must be at least 1")
        n, turn = shape[axis], size * block
        if block == 1:
            turns = (range(r, n, size) for r in range(size))
            return cls.of_ranges(shape, [[_part(shape, {axis: turn})] if turn else [] for turn in turns])
        if n > MANY * turn:
            raise ArgumentError(f"block={block} makes {n // turn} boxes a rank, more than {MANY}: take longer blocks")
        return cls.of_ranges(shape, [
            [_part(shape, {axis: range(at, min(at + block, n))}) for at in range(r * block, n, turn)]
            for r in range(size)
        ])  # fmt: skip

    @classmethod
    def flat(cls, shape: Sequence[int], size: int, begin: int = 0, total: int | None = None) -> Layout:
        """The array, read in C's order, is a piece of a flat vector that is cut evenly among `size` ranks (ZeRO).

        `begin`: where it begins in the vector, of `total` elements; the last rank's part is shorter where they cannot
        be equal.  A rank holds at most 2 d - 1 boxes of an array of d axes.

        >>> import hocket
        >>> hocket.Layout.flat((3, 4), 2).shapes(0)
        [(1, 4), (1, 2)]
        """
        shape, size = _shape(shape), _size(size)
        n = math.prod(shape)
        total = begin + n if total is None else total
        each = -(-total // size)
        bounds = [[min(max(at - begin, 0), n) for at in (r * each, (r + 1) * each)] for r in range(size)]
        return cls.of_ranges(shape, [list(_flat(shape, low, high)) for low, high in bounds])

    @classmethod
    def placed(
        cls, shape: Sequence[int], axes: Any, placements: Sequence[str | Sequence[str] | None]
    ) -> Layout:
        """Ranks stand in a mesh; each axis of the array is cut along an axis of it, along several, or not at all.

        `axes`: a `hocket.training.Mesh`, or names and lengths of axes, the last one that of neighbouring ranks.
        `placements`: for each axis of the array the name of a mesh axis, names of several (the first cuts first), or
        None.  Along mesh axes that are not named, all hold the same.  It is `jax.sharding.PartitionSpec`'s meaning,
        with parts as in `cut`.

        >>> import hocket
        >>> hocket.Layout.placed((4, 6), {"data": 2, "tensor": 3}, (None, "tensor")).shapes(4)
        [(4, 2)]
        """
        shape, mesh = _shape(shape), axes
        axes = mesh if isinstance(mesh, Mapping) else mesh.axes
        if len(placements) != len(shape):
            raise ArgumentError(f"placements={tuple(placements)} must have one for each of {len(shape)} axes")
        named = [() if p is None else (p,) if isinstance(p, str) else tuple(p) for p in placements]
        for name in itertools.chain(*named):
            if name not in axes:
                raise ArgumentError(f"placements name {name!r}; the mesh has {', '.join(map(repr, axes)) or 'no axes'}")
        if len({*itertools.chain(*named)}) < sum(map(len, named)):
            raise ArgumentError(f"placements={tuple(placements)} name a mesh axis twice")
        boxes = []
        for at in itertools.product(*map(range, axes.values())):
            place, box = dict(zip(axes, at, strict=True)), {}
            for axis, names in enumerate(named):
                index, parts = 0, 1
                for name in names:
                    index, parts = index * axes[name] + place[name], parts * axes[name]
                each, more = divmod(shape[axis], parts)
                low = index * each + min(index, more)
                box[axis] = range(low, low + each + (index < more))
            boxes.append([_part(shape, box)])
        if mesh is not axes:  # which has placed its ranks by their hosts
            placed = dict(zip(mesh.places, boxes, strict=True))
            boxes = [placed.get(rank, []) for rank in range(1 + max(placed))]
        return cls.of_ranges(shape, boxes)

    @classmethod
    def of_sharding(cls, sharding: Any, shape: Sequence[int]) -> Layout:
        """A `jax.sharding.Sharding`, as `NamedSharding`: ranks are JAX's processes, boxes their devices' in order.

        Boxes that several devices of a process hold are there once.
        """
        shape = _shape(shape)
        found: dict[int, dict[Box, None]] = {}
        for device, index in sharding.devices_indices_map(shape).items():
            box = tuple(range(n)[part] for n, part in zip(shape, index, strict=True))
            found.setdefault(device.process_index, {})[box] = None
        size = 1 + max(found, default=-1)
        return cls.of_ranges(shape, [list(found.get(rank, ())) for rank in range(size)])

    @classmethod
    def of_dtensor(cls, mesh: Any, placements: Sequence[Any], shape: Sequence[int]) -> Layout:
        """A torch DTensor's `device_mesh`, `placements` and shape: Shard, also uneven and twice, and Replicate.

        Ranks are torch's, parts as `torch.chunk` makes them; FSDP2 over tensor parallel layers, too, which torch calls
        _StridedShard.  Raises ArgumentError for partial sums, which are not parts of an array.
        """
        shape, ranks = _shape(shape), mesh.mesh
        boxes: dict[int, Box] = {}
        for at in itertools.product(*map(range, ranks.shape)):
            axes = [[range(n)] for n in shape]
            """The indices that this rank has of each axis, in order."""
            for index, parts, placement in zip(at, ranks.shape, placements, strict=True):
                if type(placement).__name__ not in ("Shard", "_StridedShard", "Replicate"):
                    raise ArgumentError(f"{placement} has no boxes: redistribute it to Shard or Replicate first")
                axis = getattr(placement, "dim", None)
                if axis is not None:
                    before = _chunks(axes[axis], getattr(placement, "split_factor", 1))
                    axes[axis] = [piece for each in before for piece in _chunks(each, parts)[index]]
            if any(len(own) > 1 for own in axes):
                raise ArgumentError(f"{list(placements)} cut {shape} unevenly, so that a rank's part is not a box")
            boxes[int(ranks[at])] = tuple(own[0] if own else range(0) for own in axes)
        return cls.of_ranges(shape, [[boxes[r]] if r in boxes else [] for r in range(1 + max(boxes, default=-1))])

    # --- about it

    @property
    def boxes(self) -> list[list[tuple[slice, ...]]]:
        """Slices, by rank: what it can be made of."""
        return [[tuple(slice(r.start, r.stop, r.step) for r in box) for box in own] for own in self.ranges]

    @property
    def size(self) -> int:
        """Ranks that it names."""
        return len(self.ranges)

    def of(self, rank: int) -> tuple[Box, ...]:
        """The boxes of a rank."""
        return self.ranges[rank] if rank < len(self.ranges) else ()

    def shapes(self, rank: int) -> list[tuple[int, ...]]:
        """The shapes of the arrays that a rank holds."""
        return [tuple(map(len, box)) for box in self.of(rank)]

    def parts(self, array: Any, rank: int) -> list[Any]:
        """The parts of a global array that a rank holds: views, where slices of `array` are views.

        >>> import hocket, numpy as np
        >>> hocket.Layout.cut((5,), 2).parts(np.arange(5), 1)
        [array([3, 4])]
        """
        if tuple(array.shape) != self.shape:
            raise ArgumentError(f"an array of shape {tuple(array.shape)} is not the layout's, {self.shape}")
        full = tuple(range(n) for n in self.shape)
        return [array[inside(box, full) if all(box) else tuple(slice(0, len(r)) for r in box)] for box in self.of(rank)]

    @cached_property
    def digest(self) -> str:
        """A text that other layouts do not have: as JSON would be, and short."""
        told = repr((self.shape, [[[(r.start, r.stop, r.step) for r in box] for box in own] for own in self._held]))
        return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()

    @property
    def _held(self) -> tuple[tuple[Box, ...], ...]:
        """Without the last ranks that hold none."""
        size = max((rank + 1 for rank, own in enumerate(self.ranges) if own), default=0)
        return self.ranges[:size]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.shape == other.shape and self._held == other._held

    def __hash__(self) -> int:
        return hash((self.shape, self._held))

    def __repr__(self) -> str:
        return f"<Layout of {self.shape} on {self.size} ranks, {sum(map(len, self.ranges))} boxes>"


def _shape(shape: Sequence[int]) -> tuple[int, ...]:
    lengths = tuple(wholes(shape, "shape"))
    if any(n < 0 for n in lengths):
        raise ArgumentError(f"shape={lengths} must have no negative length")
    return lengths


def _size(size: int) -> int:
    if (ranks := whole(size, "size")) < 1:
        raise ArgumentError(f"size={ranks} must be at least 1")
    return ranks


def _axis(shape: tuple[int, ...], axis: int) -> int:
    if not -len(shape) <= (axis := whole(axis, "axis")) < len(shape):
        raise ArgumentError(f"axis={axis} is not one of a shape with {len(shape)}")
    return axis % len(shape)


def _part(shape: tuple[int, ...], axes: Mapping[int, range]) -> Box:
    return tuple(axes.get(axis, range(n)) for axis, n in enumerate(shape))


def _chunks(pieces: Sequence[range], parts: int) -> list[list[range]]:
    """Indices as `torch.chunk` cuts them; pieces that follow each other are one."""
    each = -(-sum(map(len, pieces)) // parts)
    found: list[list[range]] = [[] for _ in range(parts)]
    at = 0
    for piece in pieces:
        begin = 0
        while begin < len(piece):
            own, many = found[at // each], each - at % each
            taken = piece[begin : begin + many]
            if own and own[-1].stop == taken.start:
                own[-1] = range(own[-1].start, taken.stop)
            else:
                own.append(taken)
            begin, at = begin + len(taken), at + len(taken)
    return found


def _flat(shape: tuple[int, ...], low: int, high: int) -> Iterable[Box]:
    """The elements low to high, in C's order, as few boxes."""
    if low >= high:
        return
    if not shape:
        yield ()
        return
    row = math.prod(shape[1:])
    first, last = -(-low // row), high // row
    if low // row == (high - 1) // row and high - low < row:  # within one row
        for box in _flat(shape[1:], low % row, low % row + high - low):
            yield (range(low // row, low // row + 1), *box)
        return
    if low % row:
        for box in _flat(shape[1:], low % row, row):
            yield (range(first - 1, first), *box)
    if first < last:
        yield (range(first, last), *(range(n) for n in shape[1:]))
    if high % row:
        for box in _flat(shape[1:], 0, high % row):
            yield (range(last, last + 1), *box)


def _listed(own: Any, rank: int) -> Sequence[Any]:
    if not isinstance(own, (list, tuple)) or (own and all(isinstance(each, slice) for each in own)):
        raise ArgumentError(f"boxes[{rank}] must be a list of boxes, a box a tuple of slices, got {kind(own)}")
    return own


def _box(shape: tuple[int, ...], box: Any, rank: int) -> Box:
    if not isinstance(box, (list, tuple)) or not all(isinstance(each, slice) for each in box):
        raise ArgumentError(f"a box of rank {rank} must be a tuple of slices, got {box!r}")
    if len(box) != len(shape):
        raise ArgumentError(f"a box of rank {rank} has {len(box)} slices, and the shape {shape} {len(shape)} axes")
    ranges = []
    for axis, (part, n) in enumerate(zip(box, shape, strict=True)):
        start, stop = 0 if part.start is None else part.start, n if part.stop is None else part.stop
        step = 1 if part.step is None else part.step
        start, stop, step = (whole(each, "slice") for each in (start, stop, step))
        if not (0 <= start <= stop <= n and step >= 1):
            raise ArgumentError(
                f"a box of rank {rank} is outside of the shape {shape}: axis {axis} has {n} elements, and its slice is "
                f"{start}:{stop}:{step}"
            )
        ranges.append(plain(range(start, stop, step)))
    return tuple(ranges)
