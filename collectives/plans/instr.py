"""The parts of a plan: instructions on pieces of spaces, and where the chunks of a call lie.

lower.py makes them, plan.pyx packs them for the engine.  Must not know: channels, time, and what bytes mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from hocket.algorithms.proof.rounding import Numbers
from hocket.kernels.codecs import Codec
from hocket.kernels.dtypes import DType

IN, OUT, SCRATCH, BEFORE, AFTER, OWNED_BEFORE, OWNED_AFTER = range(7)
"""Spaces: the caller's arrays, the plan's own memory, and residuals, of x and of the sums that this rank encodes."""
NO_FACTS: Mapping[str, Any] = MappingProxyType({})
ALIGN = 64
"""Scratch and the cuts of long vectors fall on cache lines."""

Location = tuple[int, int]
"""(space, offset in bytes)"""
Piece = tuple[int, int, int]
"""(space, offset, length in bytes)"""


class Apply(NamedTuple):
    """A kernel on a rank's own pieces: dst = src * factor."""

    factor: float = 1.0
    taken: DType | None = None
    """The dtype of src's elements, if they are encoded; None: what is on the wire."""
    made: DType | None = None
    """The dtype of dst's elements, if they are decoded; None: what is on the wire."""


class Residual(NamedTuple):
    """The floats that an encoding adds and leaves: beside each float that is encoded, one in each of two spaces."""

    before: int | None
    """The space of what is added; None: nothing is."""
    after: int
    """The space of what is lost."""
    at: Sequence[int]
    """Where each piece begins there, in bytes."""


class Instr(NamedTuple):
    """One step of a plan; plan.pxd says more."""

    kind: str
    """send, recv, reduce, copy, apply, call or probe"""
    peers: Sequence[int] = ()
    own: int = -1
    """The place of our operand among the peers'; -1: we bring none."""
    after_sends: bool = False
    """Wait for this step's sends."""
    src: list[Piece] | None = None
    dst: list[Piece] | None = None
    applied: Apply | None = None
    held: Sequence[int] | None = None
    """apply, reduce: elements here of each piece, where several are encoded as one."""
    dice: Sequence[int] | None = None
    """apply, reduce: the random numbers that each piece is rounded by, where a codec rounds at random."""
    encoded: bool = True
    """Its elements are those on the wire; else, in a plan that encodes some steps only, those of the caller."""
    residual: Residual | None = None
    """apply, reduce: what it adds to what it encodes, and what that loses.  If it encodes nothing: dst = src + before,
    after = 0."""
    kept: list[Piece] | None = None
    """send: where a copy of its pieces will lie, which a "copy" of its step makes."""
    early: bool = False
    """copy of a step that sends: as soon as the sends have begun; else while the step waits."""


class Residuals(NamedTuple):
    """The residuals of a call's encodings."""

    at: Callable[[int], int]
    """Where the elements of a chunk begin in each residual, in bytes."""
    own: bool
    """Has what this rank brings one?"""
    sums: bool
    """Have the sums that this rank encodes one?"""


@dataclass(frozen=True)
class ChunkLayout:
    """Where the chunks of one call lie.  Lengths in bytes on the wire, offsets in bytes of the caller's arrays."""

    lengths: Sequence[int]
    source: Callable[[int], Location]
    """Where a chunk lies that this rank brings."""
    target: Callable[[int], Location]
    """Where a chunk lies that this rank wants."""
    held: Sequence[int] | None = None
    """Elements of each chunk here, where several are encoded as one."""
    plain: Sequence[int] = ()
    """... and their bytes here."""
    residuals: Residuals | None = None


class Wires(NamedTuple):
    """The channels' properties that lowering may count on."""

    eager: int = 0
    """Messages up to so many bytes are surely buffered by their channel."""
    multicasts: Callable[[int], int] = lambda peer: 0
    """0, or which multicast the channel to a peer offers."""
    join: bool = True
    """May neighbouring chunks become one piece?  Not in segments: there both sides must cut at the same places."""
    early: bool = False
    """Does a rank copy its own part before it looks at what comes?"""


class Elements(NamedTuple):
    """The changes to elements on their way."""

    before: Apply | None = None
    """To what this rank brings ..."""
    after: Apply | None = None
    """... and to what it wants."""
    in_place: bool = False
    """May what it brings be overwritten?"""
    far: int | None = None
    """The step from which on they are encoded; None: all are."""
    numbers: Numbers | None = None
    """The random numbers that a codec rounds by."""
    added: int | None = None
    """The step from which on sums are whole, and no longer encoded; None: to the end."""


class About(NamedTuple):
    """The words of a plan about its call: to the engine, to the other ranks, and to people."""

    collective: str = ""
    algorithm: str = ""
    text: str = ""
    site: str = ""
    """Where the user's code first made such a call."""
    dtype: int = 0
    """Its code; of elements that are not encoded."""
    itemsize: int = 1
    """Bytes of an element on the wire."""
    nbytes: int = 0
    """Bytes of the whole vector."""
    fingerprint: int = 0
    codec: Codec | None = None
    """The codec of the encoded instructions."""
    packing: Codec | None = None
    """The codec by which messages are shorter than the memory that they are of."""
    facts: Mapping[str, Any] = NO_FACTS
    """The call as data, for its records: dtype and shape of its array; of messages dest and source, world ranks."""


@dataclass
class Lowered:
    """The parts of a `Plan`."""

    steps: list[list[Instr]] = field(default_factory=list)
    scratch: int = 0


def cut(count: int, pieces: int, itemsize: int) -> list[int]:
    """Cut `count` elements into near-equal pieces (bytes); long ones at cache lines, so that ranks share none."""
    line = max(1, ALIGN // itemsize)
    if count >= pieces * line * 8:
        each = -(-count // (pieces * line)) * line
        return [max(0, min(each, count - i * each)) * itemsize for i in range(pieces)]
    small, more = divmod(count, pieces)
    return [(small + (i < more)) * itemsize for i in range(pieces)]


def offsets(lengths: Iterable[int]) -> list[int]:
    """Where each of several adjacent pieces begins."""
    at, result = 0, []
    for length in lengths:
        result.append(at)
        at += length
    return result
