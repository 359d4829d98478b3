"""The state of one step: declared tensors, the units that they travel in, and the lanes that these stand on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from hocket.compression.memory import alike, put
from hocket.errors import TimeoutError
from hocket.extending import InOrder, uncaptured
from hocket.training.overlap.arrays import line, one_memory, writable
from hocket.training.overlap.carrier import Carrier
from hocket.training.overlap.dealing import Row, Tensor, Unit


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
EARLY = "wait({0!r}) was called before ready({0!r}), or twice"


class Gradient:
    """A named tensor, and how far its average is."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.array: Any = None
        """The array of `ready`, or what stands for it; until it was waited for."""
        self.due = self.own = self.fresh = False
        """Is its average to be waited for?  Has this rank made it ready?  Was it taken since the last `step`?"""
        self.times = [0.0, 0.0, 0.0, 0.0]
        """When it was ready, issued, there; and how long it was waited for."""

    @property
    def owed(self) -> str:
        """The call that must come before the next average; "": none."""
        return f"call wait({self.tensor.name!r}) for its last average first" if self.due and self.own else ""

    def untaken(self, grad: Any) -> str:
        """Why `ready` cannot take this gradient; "": it can."""
        call = f"ready({self.tensor.name!r})"
        if not writable(grad):
            return f"{call}: the array is read-only, but takes the average; pass a copy"
        if self.fresh:
            return f"{call} was called twice in a step"
        return f"{call}: {self.owed}" if self.owed else ""

    def take(self, array: Any, own: bool) -> None:
        """Take the gradient of this rank, or what stands for it."""
        self.array, self.due, self.own, self.fresh = array, True, own, True
        self.times = [time.perf_counter(), 0.0, 0.0, 0.0]

    def waited(self, began: float, ended: float) -> None:
        """Note that its average was waited for, from `began` to `ended` (seconds)."""
        self.times[2:] = [ended, ended - began]
        self.array, self.due = None, False

    def timing(self, ranks: int | None = None) -> Timing:
        """The times of its last step."""
        ready, issued, ended, exposed = self.times
        queued, sent = max(0.0, issued - ready), max(0.0, ended - issued)
        return Timing(self.tensor.name, self.tensor.nbytes, queued, sent, exposed, ranks)


class Sent:
    """A unit, its memory if it is copied, and its last call."""

    def __init__(self, unit: Unit) -> None:
        self.unit, self.calls = unit, InOrder("a Scheduler")
        self.buffer: Any = None
        self.work: Any = None
        self.tensors = (*(piece.tensor for piece in unit.pieces), *unit.told)
        """Whose elements it sends, and of which tensors it tells whether they were ready."""
        self.needs = frozenset(self.tensors)
        self.missing = len(self.needs)
        """Count of those that are not ready since the last `step`."""

    def issue(self, every: Sequence[Dealt], carrier: Carrier) -> None:
        """Begin to average it, behind its last call, which nobody has waited for if it has no tensor's elements."""
        if self.work is not None:
            self.arrive(None)
        tensors = [(every[i].tensor.name, every[i].shape) for i, begin, end in self.unit.pieces]
        with self.calls(every[self.tensors[0]].flat):
            vector = self._filled(every)
            rows = self._rows(every, vector, carrier.passes) if carrier.passes > 1 else None
            self.work = carrier.average(vector, tensors, rows)

    def _rows(self, every: Sequence[Dealt], vector: Any, passes: int) -> Any:
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

    def _filled(self, every: Sequence[Dealt]) -> Any:
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

    carrier: Carrier

    def __init__(self, row: Row) -> None:
        self.next = 0
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


class Dealt(Gradient):
    """A declared tensor, and the units in which it travels."""

    def __init__(self, place: int, tensor: Tensor, like: Any) -> None:
        super().__init__(tensor)
        self.place, self.like, self.shape = place, like, tuple(like.shape)
        self.sent: list[tuple[Sent, int, int, int]] = []
        """Its units, where in their memory its piece begins, and which elements these are."""
        self.units: list[Sent] = []
        """Tensors of the bucket, and the one that tells of it."""
        self.told: tuple[Sent, int] | None = None
        """Where it is told how many ranks made it ready."""
        self.flat: Any = None
        """The memory of `array`, or a copy, of one axis."""
        self.earlier: Sequence[Any] = ()
        """The gradients of earlier passes, likewise."""
        self.left = 0
        """Units that are not issued yet."""
        self.there = self.unused = False
        """Has its average come?  Has no rank made it ready?"""
        self.zeros: Any = None
        self.kept: Any = None
        """An average that came while no rank had made it ready, which the next one gets; the same on all ranks."""

    def take(self, array: Any, own: bool, earlier: Sequence[Any] = ()) -> None:
        uncaptured(array, "a Scheduler's step")
        self.finish()  # if nobody has waited for the zeros of an earlier step
        super().take(array, own)
        self.left, self.earlier = len(self.sent) + 1, earlier
        self.flat, self.there, self.unused = line(array), False, False
        for sent in self.units:
            sent.missing -= 1
            sent.calls.mark(array)

    def make_zeros(self) -> None:
        """Memory for `take_zeros`."""
        if self.zeros is None:
            self.zeros = alike(self.like, self.tensor.elements).reshape(self.shape)

    def take_zeros(self) -> None:
        """This rank has none in this step."""
        self.finish()
        for sent in self.units:
            sent.calls.follow(self.zeros)
        self.zeros[...] = 0
        self.take(self.zeros, own=False)

    def waited(self, began: float, ended: float) -> None:
        super().waited(began, ended)
        self.flat, self.earlier = None, ()

    def finish(self, until: float | None = None) -> None:
        """Wait for its units, and copy its average to where it belongs."""
        if not self.due or self.there:
            return
        for sent, *_ in self.sent:
            sent.arrive(until)
            sent.calls.follow(self.array)
        for sent, at, begin, end in self.sent:
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
        for sent in self.units:
            sent.calls.mark(self.array)
        self.there = True

    def _keep(self) -> None:
        """No rank had made it ready, so this is no average; but a compressor has sent what it owed."""
        if bool((self.array != 0).any()):
            self.kept = self.array + (0 if self.kept is None else self.kept)

    def ranks(self, size: int) -> int | None:
        """The number of `size` ranks that made it ready in its last step."""
        if self.told is None or self.fresh:
            return None
        sent, at = self.told
        return round(float(sent.buffer[at]) * size) if sent.work is not None and sent.work.done() else None


def placed(lanes: Sequence[Lane], every: Sequence[Dealt]) -> None:
    """Tell each gradient where it travels, and give buckets their memory."""
    units = [sent for lane in lanes for sent in lane.units]
    for sent in units:
        if sent.unit.bucket:
            count = sum(end - begin for _, begin, end in sent.unit.pieces)
            sent.buffer = alike(every[sent.tensors[0]].like, count + len(sent.unit.told))
    for gradient in every:
        gradient.sent, gradient.units = [], []
    for sent in units:
        at = 0
        for tensor, begin, end in sent.unit.pieces:
            every[tensor].sent.append((sent, at, begin, end))
            at += end - begin
        for i, tensor in enumerate(sent.unit.told):
            every[tensor].told = sent, at + i
        for tensor in sent.needs:
            every[tensor].units.append(sent)


def naming(error: BaseException, name: str) -> BaseException:
    """The same error, whose text begins with the tensor's name."""
    named = type(error)(f"{name}: {error}")
    vars(named).update(vars(error))
    return named.with_traceback(error.__traceback__)
