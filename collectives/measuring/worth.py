"""`codec="auto"`: which codec pays here?  Measured by the first call that asks, of each collective.

All ranks measure together, as a call of theirs would go, at two sizes: float32, bf16 and int8; halves as they are, and
packed without a loss.  A line through the two tells the time of others.  A codec is chosen where its line is a tenth
below the plain one: noise of less changes nothing.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any, NamedTuple

import numpy

from hocket.algorithms.language.contract import reduces
from hocket.arguments import human
from hocket.collectives.arrays.buffers import Buffer, describe, empty_like
from hocket.collectives.base.groups import open_group
from hocket.collectives.calls.ask import Ask
from hocket.collectives.measuring.comm import Runs

HALVES = (None, "lossless")
CANDIDATES = {"float32": (None, "bf16", "int8"), "float16": HALVES, "bfloat16": HALVES}
"""By dtype, the plain way first.  Codecs that want error feedback are never chosen by "auto"; nor is the lossless one
of float32, which packs less than bf16 and takes longer."""
SIZES = (64 << 10, 1 << 20)
"""Bytes that are measured.  What is shorter than the first is not worth a codec anywhere."""
GAIN = 0.9
TURNS, MORE, SHORT = 3, 12, 0.02
"""Calls of each; MORE calls if none takes SHORT seconds, as the noise of a few such may be a tenth."""
WITHIN = "choosing a codec"


class CostLine(NamedTuple):
    """Seconds of a call, over its bytes."""

    dtype: str
    codec: str | None
    first: float
    last: float
    """At SIZES."""

    def at(self, nbytes: int) -> float:
        begin, end = SIZES
        return max(0.0, self.first + (self.last - self.first) * (nbytes - begin) / (end - begin))

    @property
    def name(self) -> str:
        return self.codec or self.dtype


CallKind = tuple[str, str, str | None, Any]
"""(dtype, collective, transport asked for, algorithm asked for)"""


class Worth:
    """The measurements of one communicator."""

    def __init__(self, runner: Runs) -> None:
        self._runner = runner
        self._lines: dict[CallKind, list[CostLine]] = {}

    def codec(self, ask: Ask, nbytes: int, model: Buffer) -> str | None:
        """The codec for so many bytes like `model`, the same on all ranks.  Collective where it must measure.

        Inside `group()` nothing is measured: none, unless it has been before.
        """
        dtype = model.dtype.name
        if self._never(nbytes, ask.transport) or dtype != "float32" and (model.foreign or model.device >= 0):
            return None
        kind: CallKind = dtype, ask.collective, ask.transport, ask.algorithm
        if kind not in self._lines:
            if open_group() is not None:
                return None  # whose calls are issued together, later
            self._lines[kind] = self._measured(kind, ask.timeout, model)
        return _best(self._lines[kind], nbytes).codec

    def words(self, collective: str, nbytes: int) -> str:
        """Which codec "auto" takes for such a call, and why; not collective."""
        begin = f"{collective} {human(nbytes)}, codec='auto'"
        if why := self._never(nbytes, None):
            return f"{begin}: float32, as no codec is worth its time {why}"
        lines = self._lines.get(("float32", collective, None, None))
        if lines is None:
            return f"{begin}: not measured yet; the first {collective} with codec='auto' does it"
        best = _best(lines, nbytes)
        times = ", ".join(f"{line.name} {line.at(nbytes) * 1e3:.3g} ms" for line in lines)
        why = "the fastest by a tenth" if best.codec else "no codec is faster by a tenth"
        return f"{begin}: {best.name}, {why} (predicted: {times})"

    def _never(self, nbytes: int, transport: str | None) -> str:
        """Where nobody need measure, or "".  Ranks that share memory read it faster than they encode."""
        if self._runner.size == 1:
            return "on one rank"
        if nbytes < SIZES[0]:
            return f"below {human(SIZES[0])}"
        return "in shared memory" if transport in (None, "shm") and len(self._runner.members.groups) == 1 else ""

    def _measured(self, kind: CallKind, timeout: float | None, model: Buffer) -> list[CostLine]:
        candidates = CANDIDATES[kind[0]]
        seconds = numpy.full((len(SIZES), len(candidates)), numpy.inf)
        self._time(kind, timeout, TURNS, seconds, model)
        if seconds.max() < SHORT:
            self._time(kind, timeout, MORE, seconds, model)
        return [CostLine(kind[0], codec, *map(float, seconds[:, j])) for j, codec in enumerate(candidates)]

    def _time(self, kind: CallKind, timeout: float | None, turns: int, seconds: Any, model: Buffer) -> None:
        """Lower the seconds by so many turns; the same on all ranks, those of the slowest."""
        dtype, collective, transport, algorithm = kind
        normal = _normal(dtype, SIZES[-1])
        nothing = numpy.empty(0, numpy.float32)
        barrier = Ask("barrier", timeout=timeout, within=WITHIN)
        op = "sum" if reduces(collective) else None
        for i, nbytes in enumerate(SIZES):
            share = nbytes // normal.itemsize // self._runner.size
            count = share if collective == "allgather" else share * self._runner.size
            x = numpy.empty(count, numpy.float32) if dtype == "float32" else empty_like(model, (count,))
            room = (ctypes.c_char * (count * normal.itemsize)).from_address(describe(x).address)
            for turn in range(1 + turns):
                for j, codec in enumerate(CANDIDATES[dtype]):
                    ask = barrier._replace(
                        collective=collective, op=op, algorithm=algorithm, transport=transport, codec=codec
                    )
                    numpy.copyto(numpy.frombuffer(room, normal.dtype), normal[:count])
                    self._runner.general(nothing, None, barrier)
                    begin = time.perf_counter()
                    self._runner.general(x, None, ask)
                    if turn:  # the first makes the plan
                        seconds[i, j] = min(seconds[i, j], time.perf_counter() - begin)
        self._runner.general(seconds, None, barrier._replace(collective="allreduce", op="max"))


def _normal(dtype: str, nbytes: int) -> Any:
    """The bits of so many bytes of a normal distribution; NumPy alone has no bfloat16."""
    bits: Any = {"float32": numpy.uint32, "float16": numpy.uint16, "bfloat16": numpy.uint16}[dtype]
    x = numpy.random.default_rng(1).standard_normal(nbytes // bits().itemsize).astype(numpy.float32)
    if dtype == "float16":
        return x.astype(numpy.float16).view(bits)
    return x.view(bits) if dtype == "float32" else (x.view(numpy.uint32) >> 16).astype(bits)


def _best(lines: list[CostLine], nbytes: int) -> CostLine:
    plain, *coded = lines
    best = min(coded, key=lambda line: line.at(nbytes))
    return best if best.at(nbytes) < GAIN * plain.at(nbytes) else plain
