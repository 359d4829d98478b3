"""`codec="auto"`: which codec pays here?  Measured by the first call that asks, of each collective.

All ranks measure together, as a call of theirs would go: float32, bf16 and int8 at two sizes.  A line through the two
tells the time of others.  A codec is chosen where its line is a tenth below float32's: noise of less changes nothing.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy

from hocket.algorithms.language.contract import reduces
from hocket.arguments import human
from hocket.collectives.base.groups import open_group
from hocket.collectives.calls.ask import Ask
from hocket.collectives.measuring.comm import Runs

CANDIDATES = (None, "bf16", "int8")
"""The lossless way first.  Codecs that want error feedback are never chosen by "auto"."""
SIZES = (64 << 10, 1 << 20)
"""Bytes of float32 that are measured.  What is shorter than the first is not worth a codec anywhere."""
GAIN = 0.9
TURNS, MORE, SHORT = 3, 12, 0.02
"""Calls of each; MORE calls if none takes SHORT seconds, as the noise of a few such may be a tenth."""
WITHIN = "choosing a codec"


class Line(NamedTuple):
    """Seconds of a call, over its bytes of float32."""

    codec: str | None
    first: float
    last: float
    """At SIZES."""

    def at(self, nbytes: int) -> float:
        begin, end = SIZES
        return max(0.0, self.first + (self.last - self.first) * (nbytes - begin) / (end - begin))

    @property
    def name(self) -> str:
        return self.codec or "float32"


Kind = tuple[str, str | None, Any]
"""(collective, transport asked for, algorithm asked for)"""


class Worth:
    """The measurements of one communicator."""

    def __init__(self, runner: Runs) -> None:
        self._runner = runner
        self._lines: dict[Kind, list[Line]] = {}

    def codec(self, ask: Ask, nbytes: int) -> str | None:
        """The codec for so many bytes of float32, the same on all ranks.  Collective where it must measure.

        Inside `group()` nothing is measured: float32, unless it has been before.
        """
        if self._never(nbytes, ask.transport):
            return None
        kind: Kind = ask.collective, ask.transport, ask.algorithm
        if kind not in self._lines:
            if open_group() is not None:
                return None  # whose calls are issued together, later
            self._lines[kind] = self._measured(kind, ask.timeout)
        return _best(self._lines[kind], nbytes).codec

    def words(self, collective: str, nbytes: int) -> str:
        """Which codec "auto" takes for such a call, and why; not collective."""
        begin = f"{collective} {human(nbytes)}, codec='auto'"
        if why := self._never(nbytes, None):
            return f"{begin}: float32, as no codec is worth its time {why}"
        lines = self._lines.get((collective, None, None))
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

    def _measured(self, kind: Kind, timeout: float | None) -> list[Line]:
        seconds = numpy.full((len(SIZES), len(CANDIDATES)), numpy.inf)
        self._time(kind, timeout, TURNS, seconds)
        if seconds.max() < SHORT:
            self._time(kind, timeout, MORE, seconds)
        return [Line(codec, *map(float, seconds[:, j])) for j, codec in enumerate(CANDIDATES)]

    def _time(self, kind: Kind, timeout: float | None, turns: int, seconds: Any) -> None:
        """Lower the seconds by so many turns; the same on all ranks, those of the slowest."""
        collective, transport, algorithm = kind
        normal = numpy.random.default_rng(1).standard_normal(SIZES[-1] // 4).astype(numpy.float32)
        barrier = Ask("barrier", timeout=timeout, within=WITHIN)
        op = "sum" if reduces(collective) else None
        for i, nbytes in enumerate(SIZES):
            share = nbytes // 4 // self._runner.size
            x = normal[: share if collective == "allgather" else share * self._runner.size].copy()
            for turn in range(1 + turns):
                for j, codec in enumerate(CANDIDATES):
                    ask = barrier._replace(
                        collective=collective, op=op, algorithm=algorithm, transport=transport, codec=codec
                    )
                    numpy.copyto(x, normal[: len(x)])
                    self._runner.general(normal[:0], None, barrier)
                    begin = time.perf_counter()
                    self._runner.general(x, None, ask)
                    if turn:  # the first makes the plan
                        seconds[i, j] = min(seconds[i, j], time.perf_counter() - begin)
        self._runner.general(seconds, None, barrier._replace(collective="allreduce", op="max"))


def _best(lines: list[Line], nbytes: int) -> Line:
    plain, *coded = lines
    best = min(coded, key=lambda line: line.at(nbytes))
    return best if best.at(nbytes) < GAIN * plain.at(nbytes) else plain
