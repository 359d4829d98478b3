"""The state of one step: declared tensors, the units that they travel in, and the lanes that these stand on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from hocket.compression.memory import alike, put
from hocket.errors import TimeoutError
from hocket.training.overlap.arrays import line, one_memory, writable
from hocket.training.overlap.carrier import Carrier
from hocket.training.overlap.rows import Row, Tensor, Unit


class Timing(NamedTuple):
    """One tensor in its last step; times in seconds."""

    name: str
    bytes: int
    queued: float
    """From `ready` until its first unit was issued."""
    sent: float
    """From then until its average was seen."""
    exposed: float
    """Seconds that `wait` stood still for it."""
    ranks: int | None
    """The number of ranks that had made it ready; None: it is not known yet, or the next step has begun."""


LATE = "its average has not come in time; check that all ranks call ready() for it"


def timed(name: str, nbytes: int, times: Sequence[float], ranks: int | None) -> Timing:
    """`times`: when it was ready, issued, there; and how long it was waited for."""
    ready, issued, ended, exposed = times
    return Timing(name, nbytes, max(0.0, issued - ready), max(0.0, ended - issued), exposed, ranks)


def untaken(name: str, grad: Any, fresh: bool, owed: bool) -> str:
    """Why `ready` cannot take this gradient; "": it can.

    `fresh`: it has one of this step.  `owed`: nobody has waited for the last average.
    """
    if not writable(grad):
        return f"ready({name!r}): the array is read-only, but takes the average; pass a copy"
    if fresh:
        return f"ready({name!r}) was called twice in a step"
    return f"ready({name!r}): {unwaited(name)}" if owed else ""


def unwaited(name: str) -> str:
    return f"call wait({name!r}) for its last average first"


class Sent:
    """A unit, its memory if it is copied, and its last call."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.buffer: Any = None
        self.work: Any = None
        self.tensors = (*(piece.tensor for piece in unit.pieces), *unit.told)
        """Whose elements it sends, and of which tensors it tells whether they were ready."""
        self.needs = frozenset(self.tensors)
        self.missing = len(self.needs)
        """Count of those that are not ready since the last `step`."""

    def issue(self, every: Sequence[Gradient], carrier: Carrier) -> None:
        """Begin to average it, behind its last call, which nobody has waited for if it has no tensor's elements."""
        if self.work is not None:
            self.arrive(None)
        tensors = [(every[i].tensor.name, every[i].shape) for i, begin, end in self.unit.pieces]
        vector = self._filled(every)
        rows = self._rows(every, vector, carrier.passes) if carrier.passes > 1 else None
        self.work = carrier.average(vector, tensors, rows)

    def _rows(self, every: Sequence[Gradient], vector: Any, passes: int) -> Any:
        """The vector behind those of earlier passes."""
        rows = alike(vector, passes * len(vector)).reshape(passes, len(vector))
        put(rows[-1], vector)
        for j, row in enumerate(rows[:-1]):
            at = 0
            for tensor, begin, end in self.unit.pieces:
                earlier = every[tensor].earlier
                put(row[at : at + end - begin], earlier[j][begin:end] if j < len(earlier) else 0)
                at += end - begin
            put(row[at:], vector[at:])  # what is told of the tensors
        return rows

    def _filled(self, every: Sequence[Gradient]) -> Any:
        """The vector that travels."""
        if not self.unit.bucket:
            (tensor, begin, end), = self.unit.pieces
            return every[tensor].flat[begin:end]
        at = 0
        for tensor, begin, end in self.unit.pieces:
            put(self.buffer[at : at + end - begin], every[tensor].flat[begin:end])
            at += end - begin
        for i, tensor in enumerate(self.unit.told):
            self.buffer[at + i] = float(every[tensor].own)
        return self.buffer

    def arrive(self, until: float | None) -> None:
        """Wait for the call.  TimeoutError."""
        if not self.work.wait(None if until is None else max(0.0, until - time.perf_counter())):
            raise TimeoutError(LATE)


class Lane:
    """A communicator's lane, and where its row stands."""

    def __init__(self, carrier: Carrier, row: Row) -> None:
        self.carrier, self.next = carrier, 0
        self.units = [Sent(unit) for unit in row]

    def due(self) -> Sent | None:
        """The next unit, if its tensors are ready here."""
        if self.next == len(self.units) or self.units[self.next].missing:
            return None
        return self.units[self.next]

    def begin(self) -> None:
        """The next step: nothing is ready."""
        self.next = 0
        for sent in self.units:
            sent.missing = len(sent.needs)


class Gradient:
    """A declared tensor, and how far its average is."""

    def __init__(self, place: int, tensor: Tensor, like: Any) -> None:
        self.place, self.tensor, self.like, self.shape = place, tensor, like, tuple(like.shape)
        self.sent: list[tuple[Sent, int, int, int]] = []
        """Its units, where in their memory its piece begins, and which elements these are."""
        self.units: list[Sent] = []
        """Tensors of the bucket, and the one that tells of it."""
        self.told: tuple[Sent, int] | None = None
        """Where it is told how many ranks made it ready."""
        self.array: Any = None
        """The array of `ready`, or zeros; until it was waited for."""
        self.flat: Any = None
        """The same memory, or a copy, of one axis."""
        self.earlier: Sequence[Any] = ()
        """The gradients of earlier passes, likewise."""
        self.own = False
        """Has this rank made it ready?"""
        self.left = 0
        """Units that are not issued yet."""
        self.there = self.unused = False
        """Has its average come?  Has no rank made it ready?"""
        self.zeros: Any = None
        self.kept: Any = None
        """An average that came while no rank had made it ready, which the next one gets; the same on all ranks."""
        self.fresh = False
        """Has it been made ready, or zero, since the last `step`?"""
        self.times = [0.0, 0.0, 0.0, 0.0]
        """When it was ready, issued, there; and how long it was waited for."""

    def take(self, array: Any, own: bool, earlier: Sequence[Any] = ()) -> None:
        """Take the gradient, which is ready, or the zeros that stand for it."""
        self.array, self.own, self.fresh, self.left, self.earlier = array, own, True, len(self.sent) + 1, earlier
        for sent in self.units:
            sent.missing -= 1
        self.flat, self.there, self.unused = line(array), False, False
        self.times = [time.perf_counter(), 0.0, 0.0, 0.0]

    def take_zeros(self) -> None:
        """This rank has none in this step."""
        if self.zeros is None:
            self.zeros = alike(self.like, self.tensor.elements).reshape(self.shape)
        self.zeros[...] = 0
        self.take(self.zeros, own=False)

    def settle(self) -> None:
        """Nobody waited for the zeros of an earlier step."""
        self.finish()
        self.array = self.flat = None

    def finish(self, until: float | None = None) -> None:
        """Wait for its units, and copy its average to where it belongs."""
        if self.array is None or self.there:
            return
        for sent, at, begin, end in self.sent:
            sent.arrive(until)
            if sent.unit.bucket:
                put(self.flat[begin:end], sent.buffer[at : at + end - begin])
        if not one_memory(self.array):
            self.array[...] = self.flat.reshape(self.shape)
        if not self.own and self.told is not None:
            sent, at = self.told
            sent.arrive(until)
            self.unused = not float(sent.buffer[at]) > 0
        if self.unused:
            self._keep()
        elif self.kept is not None:
            self.array += self.kept
            self.kept = None
        self.there = True

    def _keep(self) -> None:
        """No rank had made it ready, so this is no average; but a compressor has sent what it owed."""
        if bool((self.array != 0).any()):
            self.kept = self.array + (0 if self.kept is None else self.kept)

    def timing(self, size: int) -> Timing:
        """The times of its last step, on `size` ranks."""
        ranks = None
        if self.told is not None and not self.fresh:
            sent, at = self.told
            if sent.work is not None and sent.work.done():
                ranks = round(float(sent.buffer[at]) * size)
        return timed(self.tensor.name, self.tensor.nbytes, self.times, ranks)


def placed(lanes: Sequence[Lane], every: Sequence[Gradient]) -> None:
    """Tell each gradient where it travels, and give buckets their memory."""
    for gradient in every:
        gradient.sent, gradient.units = [], []
    for sent in (sent for lane in lanes for sent in lane.units):
        at = 0
        for tensor, begin, end in sent.unit.pieces:
            every[tensor].sent.append((sent, at, begin, end))
            at += end - begin
        for i, tensor in enumerate(sent.unit.told):
            every[tensor].told = sent, at + i
        for tensor in sent.needs:
            every[tensor].units.append(sent)
        if sent.unit.bucket:
            sent.buffer = alike(every[sent.tensors[0]].like, at + len(sent.unit.told))


def naming(error: BaseException, name: str) -> BaseException:
    """The same error, whose text begins with the tensor's name."""
    named = type(error)(f"{name}: {error}")
    vars(named).update(vars(error))
    return named.with_traceback(error.__traceback__)
