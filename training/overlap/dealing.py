"""Dealing: which tensor travels on which lane, in which units, and in which order.  A pure function.

Lanes are classes of about as many bytes, by urgency: the first has the most urgent tensors.  In a lane, units are in
the order in which the backward pass makes their tensors.  A unit is one call: a slice of a tensor, where it lies; or a
bucket, into which tensors are copied that are small and stand side by side.

The last unit of each lane carries a number for each of its tensors: did this rank make it ready?  So what all ranks
left out is known without a message of its own.  (It is a bucket, the last piece of a long tensor if need be.)

What makes a dealing right, by cases; tests/training/overlap/test_rows.py tries all small ones:
1.  a tensor is in the one lane of its class, and its elements are in its units, each once: `_cut` covers [0, elements);
2.  a tensor's units stand one behind the other, and tensors in the order `made`, as a bucket is closed before a tensor
    that does not go into it;
3.  a unit has one dtype, and a bucket at most `fuse` bytes, a slice at most `slice`;
4.  the lanes' bytes differ from equal shares by less than the largest tensor: a class ends in the tensor at whose
    middle its share is full.
It depends on nothing that ranks do not share, so all ranks deal alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hocket.training.buckets import filled

TAIL = 1 << 16
"""Bytes of a long tensor's last piece, which is copied."""


class Tensor(NamedTuple):
    """A declared tensor."""

    name: str
    elements: int
    dtype: str
    itemsize: int

    @property
    def nbytes(self) -> int:
        return self.elements * self.itemsize


class TensorRange(NamedTuple):
    """Elements [begin, end) of a tensor, by its place among those declared."""

    tensor: int
    begin: int
    end: int


class Unit(NamedTuple):
    """The pieces that one call sends."""

    pieces: tuple[TensorRange, ...]
    bucket: bool
    """Are they copied to one memory?"""
    told: tuple[int, ...] = ()
    """Tensors of which it tells, behind the pieces, whether this rank made them ready."""


Row = tuple[Unit, ...]


def deal(
    tensors: Sequence[Tensor], urgency: Sequence[int], made: Sequence[int], lanes: int, slice: int, fuse: int,
    apart: bool = False,
) -> list[Row]:  # fmt: skip
    """The rows of at most `lanes` lanes, the highest first.

    `urgency`, `made`: all tensors by their places, the most urgent first, and in the order in which they become ready.
    `slice`, `fuse`: bytes, 0: whole tensors, no buckets.  `apart`: what is told of the tensors is a unit of its own.

    >>> [weight, bias] = tensors = [Tensor("weight", 6, "float32", 4), Tensor("bias", 2, "float32", 4)]
    >>> deal(tensors, [0, 1], [1, 0], lanes=1, slice=16, fuse=8, apart=True)[0][1]
    Unit(pieces=(TensorRange(tensor=0, begin=0, end=4),), bucket=False, told=())
    """
    turn = {tensor: i for i, tensor in enumerate(made)}
    rows = []
    for members in _classes(tensors, urgency, lanes):
        row = sorted(members, key=turn.__getitem__)
        units = _units(tensors, row, slice, fuse)
        rows.append((*units, Unit((), True, tuple(row))) if apart else _telling(tensors, units, tuple(row)))
    return rows


def _classes(tensors: Sequence[Tensor], urgency: Sequence[int], lanes: int) -> list[list[int]]:
    """Tensors of about as many bytes, the most urgent first; none is empty."""
    total, before = sum(tensor.nbytes for tensor in tensors) or 1, 0
    classes: list[list[int]] = [[] for _ in range(max(1, min(lanes, len(tensors))))]
    for i in urgency:
        middle = before + tensors[i].nbytes / 2
        classes[min(len(classes) - 1, int(len(classes) * middle / total))].append(i)
        before += tensors[i].nbytes
    return [members for members in classes if members]


def _units(tensors: Sequence[Tensor], row: Sequence[int], slice: int, fuse: int) -> list[Unit]:
    def kind(i: int) -> str | None:
        return tensors[i].dtype if 0 < tensors[i].nbytes <= fuse else None

    units: list[Unit] = []
    for bucket in filled(row, kind, lambda i: tensors[i].nbytes, fuse, neighbours=True):
        if kind(bucket[0]) is None:
            units += [Unit((piece,), False) for piece in _cut(bucket[0], tensors[bucket[0]], slice)]
        else:  # one tensor alone is sent where it lies
            units.append(Unit(tuple(TensorRange(i, 0, tensors[i].elements) for i in bucket), len(bucket) > 1))
    return units


def _cut(i: int, tensor: Tensor, slice: int) -> list[TensorRange]:
    step = max(1, slice // tensor.itemsize) if slice else max(1, tensor.elements)
    return [TensorRange(i, at, min(at + step, tensor.elements)) for at in range(0, tensor.elements, step)]


def _telling(tensors: Sequence[Tensor], units: list[Unit], row: tuple[int, ...]) -> Row:
    """The same units, of which the last one tells."""
    if not units:
        return (Unit((), True, row),)
    *others, last = units
    (i, begin, end), *_ = last.pieces
    tail = TAIL // tensors[i].itemsize
    if not last.bucket and end - begin > tail:
        others.append(Unit((TensorRange(i, begin, end - tail),), False))
        last = Unit((TensorRange(i, end - tail, end),), True)
    return (*others, Unit(last.pieces, True, row))
