"""A call that is understood: its arrays, what all ranks must agree on, and where every chunk of a schedule lies.

shapes.py makes it from the caller's arguments.  The engine knows bytes, the algorithms chunks.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hocket.algorithms.language.contract import CONTRACTS, Contract
from hocket.algorithms.language.registry import Algorithm
from hocket.collectives.arrays.buffers import Buffer
from hocket.collectives.plans.instr import ALIGN, IN, OUT, ChunkLayout, Location, Residuals, cut, offsets
from hocket.errors import ArgumentError
from hocket.kernels.codecs import Codec
from hocket.kernels.dtypes import DTYPES, DType

Chunks = tuple[Sequence[int], Callable[[int], Location], Callable[[int], Location]]
"""The elements of each chunk, and where it lies: the place of one that this rank brings, and of one that it wants, with
offsets in elements."""


ON_GPU, IS_PACKED = 1 << 16, 1 << 17
"""In the code of a message's dtype: it goes from GPU to GPU; it is packed by codec="lossless"."""


def in_words(code: int, nbytes: int) -> str:
    """A message, by the code of its dtype and its length."""
    dtype = DTYPES[code & ~(ON_GPU | IS_PACKED)].name
    if code & IS_PACKED:
        return f"{dtype} that codec='lossless' has packed (a recv says codec='lossless', too)"
    return f"{dtype} on a GPU" if code & ON_GPU else f"{nbytes} bytes of {dtype}"


def array_facts(model: Buffer) -> dict[str, Any]:
    """The array of a call as its records tell it."""
    return {"dtype": model.dtype.name, "shape": [*model.shape]}


class Exact(NamedTuple):
    """The sums of a call are exact (calls/exact.py)."""

    op: str
    rows: int | None = None
    """Rows of x that are added, too; None: x is one addend."""
    stride: int = 0
    """Bytes from one row to the next."""
    divisor: int = 1
    """An average is divided by this; -1: by the number of all addends, as ranks may have different numbers of rows."""


@dataclass
class Call:
    """One resolved call.  Counts are elements."""

    collective: str
    src: Buffer | None
    dst: Buffer | None
    count: int
    """Elements of the vector, or of all blocks together; algorithms are chosen by them."""
    root: int = 0
    counts: tuple[int, ...] | None = None
    """Elements per rank; alltoall: to each, then from each."""
    in_place: bool = False
    codec: str = ""
    """The name of what its elements are on the wire, if they are encoded; and that itself:"""
    encoded: DType | Codec | None = None
    residuals: tuple[Buffer | None, ...] = ()
    """Its encodings add and leave these, in the order of the spaces from BEFORE on (calls/residuals.py)."""
    exact: Exact | None = None
    private: bool = False
    """No other rank knows our counts (alltoallv)."""
    places: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """alltoall: by rank, where in src its block is, and where in dst, if not one behind the other.  This rank's own
    stays where it is."""
    result: Any = None

    @property
    def model(self) -> Buffer:
        """A buffer that tells the dtype."""
        buffer = self.src or self.dst
        assert buffer is not None
        return buffer

    @property
    def wire(self) -> DType | Codec:
        """The form of its elements on the wire."""
        return self.model.dtype if self.encoded is None else self.encoded

    def on_wire(self, count: int) -> int:
        """Bytes of so many elements on the wire; the last block may be short."""
        return self.wire.nbytes(count)

    @property
    def carried(self) -> int:
        """Bytes of the vector, as calls are counted."""
        return self.on_wire(self.count) if self.exact is None else self.count * self.model.dtype.itemsize

    @property
    def kind(self) -> Hashable:
        """Calls of one kind may have one plan."""
        ends = self.src is None, self.dst is None
        of = self.collective, self.model.dtype, self.count, self.counts, self.root, self.in_place, self.private
        return *of, *ends, *self.keeps, self.exact, self.places

    @property
    def addresses(self) -> tuple[int, int]:
        """The addresses of input and output; 0: nothing does."""
        return self.src.address if self.src else 0, self.dst.address if self.dst else 0

    @property
    def keeps(self) -> tuple[bool, bool]:
        """Does it keep what the encodings of x lose, and what those of sums lose?"""
        return any(self.residuals[:2]), any(self.residuals[2:])

    @property
    def residual_addresses(self) -> tuple[int, ...]:
        return tuple(0 if each is None else each.address for each in self.residuals)

    @property
    def gpu(self) -> int:
        """The GPU that all its arrays are on; -1: some are elsewhere."""
        devices = {buffer.device for buffer in (self.src, self.dst) if buffer is not None}
        return devices.pop() if len(devices) == 1 else -1

    def stage(self) -> None:
        """Work on host copies of the arrays that are on a GPU."""
        for buffer in (self.src, self.dst, *self.residuals):
            if buffer is not None:
                buffer.stage()

    def restore(self) -> None:
        """Write the results back to where the caller wants them, if the call worked on copies.

        Raises ArgumentError where the result is an average of nothing, as no rank had a row.
        """
        for buffer in (self.dst, *self.residuals[1::2]):
            if buffer is not None:
                buffer.restore()
        if self.exact is not None and self.exact.rows == 0 and self.exact.op == "avg" and self.dst and self.dst.count:
            width = self.dst.dtype.itemsize
            if ctypes.string_at(self.dst.address, width) == b"\xff" * width:  # not the NaN that sums end in
                raise ArgumentError(f"{self.collective}: no rank has a row to average: give one, or ask for the sum")

    @property
    def contract(self) -> Contract:
        """The promise of the collective.  A barrier and a close are an allreduce of nothing."""
        return CONTRACTS["allreduce" if self.collective in ("barrier", "close") else self.collective]

    @property
    def is_told_by_shape(self) -> bool:
        """Do x's shape, the counts and where `out` lies tell all?  Not where the call is in place as `out` is x."""
        out_is_x = self.dst is not None and self.dst.array is self.model.array
        return self.src is not None and not (self.in_place and out_is_x and not self.contract.in_place)

    @property
    def agreed(self) -> str:
        """All ranks must have this in common, for the fingerprint."""
        shape = "" if self.private else f"{self.count}|{self.counts}"
        exact = "" if self.exact is None else f"exact|{self.exact.rows is not None}"
        return f"{self.collective}|{self.model.dtype.name}|{self.codec}{exact}|{self.keeps}|{self.root}|{shape}"

    def words(self, op: str, algorithm: str | None, members: Sequence[int]) -> str:
        """The call in words, with all that ranks may differ in; `algorithm`: the one that was asked for.

        `members`: their ranks in the job, in which the root is told.
        """
        if self.collective in ("barrier", "close"):
            return f"{self.collective}()"
        root = members[self.root] if self.contract.rooted else None
        order, axis = (None, None) if self.exact is None else ("exact", None if self.exact.rows is None else 0)
        options = {
            "op": op or None, "root": root, "algorithm": algorithm, "order": order, "axis": axis,
            "codec": self.codec or None,
        }  # fmt: skip
        parts = [f"{self.model.dtype.name}{list(self.model.shape)}"]
        if self.private and self.counts is not None:
            row, half = max(1, math.prod(self.model.shape[1:])), len(self.counts) // 2
            to, of = ([n // row for n in each] for each in (self.counts[:half], self.counts[half:]))
            parts += [f"send_counts={shortened(to)}", f"recv_counts={shortened(of)}"]
        elif self.counts is not None and len(set(self.counts)) > 1:
            parts.append(f"counts of elements {shortened(self.counts)}")
        parts += [f"{name}={value!r}" for name, value in options.items() if value is not None]
        parts += [name for name, kept in zip(("residual=...", "owner_residual=..."), self.keeps, strict=True) if kept]
        return f"{self.collective}{'v' if self.private else ''}({', '.join(parts)})"

    def layout(self, algorithm: Algorithm, rank: int, size: int) -> ChunkLayout:
        """Where the chunks of `algorithm` lie."""
        counts, source, target = self._chunks(algorithm, rank, size)
        width = self.model.dtype.itemsize

        def here(place: Callable[[int], Location]) -> Callable[[int], Location]:
            return lambda chunk: (place(chunk)[0], place(chunk)[1] * width)

        held = counts if self.wire.block > 1 else None
        plain = [n * width for n in counts]
        begin = source(rank)[1] if self.collective == "allgather" else 0  # of x, whose place in `out` it may have
        residuals = Residuals(lambda chunk: (source(chunk)[1] - begin) * width, *self.keeps) if self.residuals else None
        return ChunkLayout([self.on_wire(n) for n in counts], here(source), here(target), held, plain, residuals)

    def _chunks(self, algorithm: Algorithm, rank: int, size: int) -> Chunks:
        source = OUT if self.in_place else IN
        if self.collective == "alltoall":
            return _alltoall(self.counts or (), self.places, rank, size)
        if self.counts is None:
            wire = self.wire
            unit = wire.itemsize if wire.block == 1 else ALIGN  # blocks of floats are whole cache lines here
            pieces = cut(-(-self.count // wire.block), algorithm.chunks(size), unit)
            ends = [min(at // unit * wire.block, self.count) for at in (*offsets(pieces), sum(pieces))]
            counts = [end - begin for begin, end in itertools.pairwise(ends)]
            spare = [max(counts, default=0)] * algorithm.scratch
            return [*counts, *spare], lambda c: (source, ends[c]), lambda c: (OUT, ends[c])
        at = offsets(self.counts)
        if CONTRACTS[self.collective].joins:
            mine = (OUT, at[rank]) if self.in_place else (IN, 0)
            return self.counts, lambda c: mine, lambda c: (OUT, at[c])
        return self.counts, lambda c: (IN, at[c]), lambda c: (OUT, 0)


def shortened(counts: Sequence[int]) -> str:
    """Counts as text: of more than eight, the first six and the last."""
    shown = [str(n) for n in counts]
    return f"[{', '.join(shown if len(shown) <= 8 else [*shown[:6], '...', shown[-1]])}]"


def _alltoall(
    counts: Sequence[int], places: tuple[Sequence[int], Sequence[int]] | None, rank: int, size: int
) -> Chunks:
    """Chunk s*size + d goes from s to d; this rank knows the lengths of those that it sends or receives."""
    to, of = counts[:size], counts[size:]
    equal = len(set(counts)) == 1
    each = [
        to[d] if s == rank or equal else of[s] if d == rank else 0
        for s in range(size) for d in range(size)
    ]  # fmt: skip
    sends, receives = (offsets(to), offsets(of)) if places is None else places
    stays = -1 if places is None else rank * size + rank
    return each, lambda c: (OUT if c == stays else IN, sends[c % size]), lambda c: (OUT, receives[c // size])
