"""One collective of a random program on one rank: its arrays, the call, what must come out, and whether it did."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import hocket
from hocket.algorithms.language.contract import CONTRACTS, Contract, reduces
from hocket.conformance.fuzz.rounds import Call
from hocket.conformance.fuzz.values import ALL, CODECS, FUNCTIONS, encoded, values
from hocket.conformance.oracle import Array, Expected, difference, pieces, reduced, result

GUARD, POISON = 64, 0xA5
"""Bytes before and after each array, which nobody may change."""
FROM_ZERO = {"allreduce": ("one_shot", "direct"), "reduce": ("direct",), "reduce_scatter": ("direct",)}
"""Algorithms that are one reduction of all ranks' operands, from rank 0 on."""


class WrongError(Exception):
    """A result that is not what NumPy says."""


class Guarded:
    """An array with poison around it."""

    def __init__(self, dtype: str, shape: tuple[int, ...], mapped_in: Any = None) -> None:
        nbytes = ALL[dtype].itemsize * int(np.prod(shape, dtype=np.int64))
        room = nbytes + 2 * GUARD
        self.memory = np.empty(room, np.uint8) if mapped_in is None else hocket.empty(room, np.uint8, comm=mapped_in)
        self.memory[:] = POISON
        self.array: Array = self.memory[GUARD : GUARD + nbytes].view(ALL[dtype]).reshape(shape)

    def check(self) -> None:
        around = self.memory[:GUARD], self.memory[GUARD + self.array.nbytes :]
        if any((part != POISON).any() for part in around):
            raise WrongError("bytes beside an array were written")


class CallArrays(NamedTuple):
    """Where a call's arrays lie, all in guarded memory.  `changes`: may the call change x?"""

    x: Array | None
    out: Array | None
    memory: list[Guarded]
    changes: bool


class Made(NamedTuple):
    """A call that was made: what it returned (a Work, if `later`), and the check of its result.

    `check` gives a checksum of the result, None where there is none.
    """

    returned: Any
    later: bool
    check: Callable[[Any], int | None]


class LocalCall:
    """One call on one rank, to be made as often as wished.  `key`: what tells its values apart from all others'."""

    def __init__(self, comm: Any, call: Call, key: tuple[int, ...]) -> None:
        self.comm, self.call, self.rank = comm, call, comm.rank
        blocks = call.counts or (call.rows or 0,) * comm.size
        self.matrix = call.matrix or (blocks,) * comm.size
        self.blocks = blocks
        shapes = [self._shape(r) for r in range(comm.size)]
        needed = range(comm.size) if call.collective not in ("broadcast", "scatter", "barrier") else [call.root]
        self.inputs: dict[int, Array] = {}
        added = call.op or ("sum" if call.codec else None)  # a codec wants numbers, not any bits
        for r in needed:
            count = int(np.prod(shapes[r], dtype=np.int64))
            self.inputs[r] = values((*key, r), call.dtype, count, added).reshape(shapes[r])
        self.shape = shapes[self.rank]
        self.wanted = self._wanted()
        if self.wanted is not None and call.codec is not None:
            self.wanted = encoded(self.wanted, list(self.inputs.values()), call.codec)

    # --- shapes and results

    def _shape(self, rank: int) -> tuple[int, ...]:
        """The shape of a rank's x."""
        call = self.call
        if call.rows is None:
            return ()
        if call.collective in ("allgather", "gather"):
            rows = self.blocks[rank]
        elif call.collective in ("reduce_scatter", "scatter"):
            rows = sum(self.blocks)
        elif call.collective == "alltoall":
            rows = sum(self.matrix[rank])
        else:
            rows = call.rows
        return (rows, *call.tail)

    def _wanted(self) -> Expected | None:
        """The result that this rank must get; None: nothing."""
        call, size = self.call, self.comm.size
        if call.collective == "barrier":
            return None
        if call.collective == "exscan" and self.rank == 0:
            return Expected(self.inputs[0]) if call.way != "given" else None
        whole = 1 if call.rows is None else call.rows
        lengths = {"alltoall": self.matrix}.get(call.collective, self.blocks if self._has_blocks() else whole)
        return result(pieces(call.collective, size, self.rank, call.root, lengths), self._reduction)

    def _has_blocks(self) -> bool:
        return self.call.collective in ("reduce_scatter", "scatter", "gather", "allgather")

    def _reduction(self, ranks: list[int], rows: slice) -> Expected:
        call = self.call
        xs = [self.inputs[r] if call.rows is None else self.inputs[r][rows] for r in ranks]
        if not reduces(call.collective):
            return Expected(xs[0])
        left = call.codec is None and call.algorithm in FROM_ZERO.get(call.collective, ())
        op = FUNCTIONS.get(call.op or "", call.op or "")
        return reduced(op, xs, call.factors[: len(xs)], left, self.comm.size)

    @property
    def contract(self) -> Contract:
        return CONTRACTS["allreduce" if self.call.collective == "barrier" else self.call.collective]

    # --- the call

    def make(self) -> Made:
        """Make it once, with arrays of its own."""
        call, later, how = self.call, self.call.later[self.rank], self._options()
        if call.collective == "barrier":
            return Made(self.comm.barrier(**how), later, lambda result: None)
        at = self._places()
        before = None if at.x is None or at.changes else at.x.tobytes()
        if call.keeps:
            lost = self._guarded(self.shape)
            at.memory.append(lost)
            how["residual"] = None, lost.array
        rooted = (call.root,) if self.contract.rooted else ()
        wants = () if call.op is None else (self._op(),)
        rest = (*rooted, *wants) if call.collective == "reduce" else (*self._counts(), *wants, *rooted)
        given = {} if at.out is None else {"out": at.out}
        returned = getattr(self.comm, self._name())(at.x, *rest, **given, **how)

        def check(result: Any) -> int | None:
            for each in at.memory:
                each.check()
            if before is not None and at.x is not None and at.x.tobytes() != before:
                raise WrongError("x was changed")
            if call.keeps and not (np.abs(lost.array) <= self._room()).all():
                raise WrongError(f"the residual is {np.abs(lost.array).max()}, more than {self._room()}")
            return self._check(result, at.x if at.out is None and self.contract.in_place else at.out)

        return Made(returned, later, check)

    def _places(self) -> CallArrays:
        """Where x and the result lie."""
        call, me, before = self.call, self.rank, sum(self.blocks[: self.rank])
        own = slice(before, before + self.blocks[me])
        rooted_elsewhere = self.contract.rooted and me != call.root
        if call.collective == "scatter" and rooted_elsewhere and (call.bare[me] or call.way == "in place"):
            out = self._guarded((self.blocks[me], *call.tail))
            return CallArrays(None, out.array, [out], False)
        if call.way == "in place" and call.collective == "allgather" and self.inputs[me].nbytes:
            out = self._guarded((sum(self.blocks), *call.tail))
            out.array[own] = self.inputs[me]
            return CallArrays(out.array[own], out.array, [out], call.codec is not None)
        x = self._guarded(self.shape)
        if call.collective not in ("broadcast", "scatter") or not rooted_elsewhere:
            x.array[...] = self.inputs[me]
        if call.way == "new" or call.collective == "broadcast" or rooted_elsewhere and call.collective != "scatter":
            return CallArrays(x.array, None, [x], self.contract.in_place)
        if call.way == "in place" and (self.contract.in_place or call.collective == "reduce"):
            return CallArrays(x.array, x.array, [x], True)
        if call.way == "in place" and call.collective == "reduce_scatter" and self.blocks[me]:
            return CallArrays(x.array, x.array[own], [x], True)
        out = self._guarded(self.shape if self.wanted is None else self.wanted.array.shape)
        return CallArrays(x.array, out.array, [x, out], False)

    def _guarded(self, shape: tuple[int, ...]) -> Guarded:
        return Guarded(self.call.dtype, shape, self.comm if self.call.mapped else None)

    def _room(self) -> float:
        """The most that an encoding of the vector, or of a host's sum of them, loses of an element."""
        largest = sum(float(np.abs(x).max(initial=0)) for x in self.inputs.values())
        return CODECS[self.call.codec or ""][1] * largest + 1e-6

    def _name(self) -> str:
        v = self.call.matrix if self.call.collective == "alltoall" else self.call.counts
        return self.call.collective + ("v" if v else "")

    def _counts(self) -> tuple[Any, ...]:
        call = self.call
        if call.collective == "alltoall":
            return (call.matrix[self.rank], [row[self.rank] for row in call.matrix]) if call.matrix else ()
        return (call.counts,) if call.counts else ()

    def _op(self) -> Any:
        op = self.call.op or ""
        return hocket.premul_sum(self.call.factors[self.rank]) if op == "premul_sum" else FUNCTIONS.get(op, op)

    def _options(self) -> dict[str, Any]:
        call = self.call
        codec = None if call.codec is None else CODECS[call.codec][0]
        found = {"algorithm": call.algorithm, "transport": call.transport, "codec": codec}
        options: dict[str, Any] = {name: value for name, value in found.items() if value is not None}
        if call.order != "any":
            options["order"] = call.order
        return {**options, "async_op": True} if call.later[self.rank] else options

    # --- the check

    def _check(self, result: Any, out: Any) -> int | None:
        nothing = self.call.collective in ("reduce", "gather") and self.rank != self.call.root
        if nothing:
            if result is not None:
                raise WrongError(f"the result is {result!r} on a rank that gets none")
            return None
        if out is not None and result is not out:
            raise WrongError("the result is not out")
        if not isinstance(result, np.ndarray):
            raise WrongError(f"the result is {result!r}")
        if result.dtype != ALL[self.call.dtype]:
            raise WrongError(f"the result's dtype is {result.dtype}")
        if self.wanted is None:
            return None
        why = difference(result, self.wanted)
        if why:
            raise WrongError(why)
        return zlib.crc32(result.tobytes())
