"""`Scheduler`: gradients travel while the computation goes on, in an order that needs no coordinator.

The law.  Every rank declares the same tensors in the same order, that of their use in the forward pass.  Declaration
alone fixes to which lane a tensor belongs, and where it stands in that lane's row (rows.py).  A rank issues the next
unit of a row when its tensors are ready here; what comes too early waits for those before it in its own row, never for
another lane.  The engine serves higher lanes first, and holds lower ones while a higher one moves.

No deadlock.  Take the earliest step with something unfinished.  What its computation waits for is of earlier steps, so
every rank makes its tensors ready, and `step` supplies those that it does not.  In each lane, from the highest down,
take the first unfinished unit: those before it have ended on all ranks, so each rank has issued it.  A call that all
members have issued on an idle lane ends: lanes wait only for higher ones, and only while these move
(collectives/waiting/progress.pyx).  By induction over lanes, units and steps everything ends.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hocket.arguments import choices, kind, whole
from hocket.compression import resolved
from hocket.errors import ArgumentError, Error, MismatchError, PeerLostError, TimeoutError
from hocket.training.overlap.carrier import Carrier
from hocket.training.overlap.orders import ORDERS, RECORDED
from hocket.training.overlap.record import Recording
from hocket.training.overlap.rows import Row, Tensor, Unit, deal

LOOK = 0.2
"""Seconds between two looks of who waits for another thread: has a rank been lost?"""
UNITS, LEAST, MOST = 64, 64 << 10, 4 << 20
"""`slice="auto"` and `fuse="auto"`: a 64th of all bytes, between these.  VGG-19's model has its best iteration at 30 to
100 slices, and a bucket that is much longer than a slice holds up the layer that is needed first."""
FLOATS = ("float16", "bfloat16", "float32", "float64")
_made: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""How many schedulers each communicator has: a lane's name stands for one priority."""


class Timing(NamedTuple):
    """One tensor in its last step; times in seconds."""

    name: str
    bytes: int
    queued: float
    """From `ready` until its first unit was issued."""
    sent: float
    """From then until its average was seen."""
    exposed: float
    """How long `wait` stood still for it."""
    ranks: int | None
    """How many ranks had made it ready; None: it is not known yet, or the next step has begun."""


class _Lane:
    """A communicator's lane, and where its row stands."""

    def __init__(self, carrier: Carrier, row: Row) -> None:
        self.carrier, self.next = carrier, 0
        self.units = [_Sent(unit) for unit in row]


class _Sent:
    """A unit, its memory if it is copied, and its last call."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.buffer: Any = None
        self.work: Any = None


class _Gradient:
    """A declared tensor, and how far its average is."""

    def __init__(self, place: int, tensor: Tensor, like: Any) -> None:
        self.place, self.tensor, self.like, self.shape = place, tensor, like, tuple(like.shape)
        self.sent: list[tuple[_Sent, int, int, int]] = []
        """Its units, where in their memory its piece begins, and which elements these are."""
        self.told: tuple[_Sent, int] | None = None
        """Where it is told how many ranks made it ready."""
        self.array: Any = None
        """What `ready` was given, or zeros; until it was waited for."""
        self.flat: Any = None
        """The same memory, or a copy, of one axis."""
        self.own = False
        """Has this rank made it ready?"""
        self.left = 0
        """Units that are not issued yet."""
        self.there = False
        """Has its average come?"""
        self.zeros: Any = None
        self.fresh = False
        """Has it been made ready, or zero, since the last `step`?"""
        self.times = [0.0, 0.0, 0.0, 0.0]

    def take(self, array: Any, own: bool) -> None:
        self.array, self.own, self.fresh, self.left = array, own, True, len(self.sent) + 1
        self.flat, self.there = array.reshape(-1), False
        self.times = [time.perf_counter(), 0.0, 0.0, 0.0]


class Scheduler:
    """Averages gradients over all ranks while the computation goes on.

    `order`: "fifo", "priority", "tic" or "tac" (orders.py), or names, the most urgent first.  `lanes`: classes of
    urgency.  `slice`: bytes of a long tensor that travel as one call; None: all of it.  `fuse`: smaller tensors go
    together up to so many bytes; 0: none do.  "auto": a 64th of all, 64 KiB to 4 MiB.  `codec`: as in `allreduce`, for
    float32.  `compressor`: a method of `hocket.compression`, by name or made, for float32: each lane has a `Compressor`
    with it, and a thread.  `finite`: raise where an average holds a NaN or an infinity.

    All ranks declare the same tensors in the order of their use, and make them ready in any order, in any thread.  The
    first `ready` is a call that all ranks make together on `comm`; the order of all others is free.  With a codec or a
    compressor, each lane sends one more small message a step; a compressor's lanes do not hold each other back.  Errors
    end the lanes of all ranks.

    >>> import hocket, numpy as np
    >>> from hocket.training import Scheduler
    >>> def step(comm):
    ...     s, grads = Scheduler(comm), {"first": np.full(2, comm.rank, np.float32), "second": np.ones(3, np.float32)}
    ...     for name, grad in grads.items():        # as the forward pass uses them
    ...         s.declare(name, grad)
    ...     for name in reversed(grads):            # as the backward pass makes them
    ...         s.ready(name, grads[name])
    ...     late = s.step()
    ...     return late, s.wait("first").tolist(), s.wait("second").tolist()
    >>> hocket.local_world(2).run(step)[0]
    ([], [0.5, 0.5], [1.0, 1.0, 1.0])
    """

    def __init__(
        self, comm: Any, *, order: str | Sequence[str] = "priority", lanes: int = 4, slice: int | str | None = "auto",
        fuse: int | str = "auto", codec: Any = None, compressor: Any = None, finite: bool = True,
    ) -> None:  # fmt: skip
        if isinstance(order, str) and order not in ORDERS:
            raise ArgumentError(f"order={order!r} is unknown; {choices(order, ORDERS)}")
        self.comm, self.order, self.finite = comm, order if isinstance(order, str) else [*order], finite
        self.lanes, self.slice, self.fuse = whole(lanes, "lanes"), _bytes(slice, "slice"), _bytes(fuse, "fuse")
        if self.lanes < 1 or (self.slice or 0) < 0 or (self.fuse or 0) < 0:
            raise ArgumentError(f"lanes={lanes}, slice={slice!r}, fuse={fuse!r} must be positive numbers")
        if codec is not None and compressor is not None:
            raise ArgumentError("give codec= or compressor=, not both")
        self.codec, self.method = codec, None if compressor is None else resolved(compressor)
        self._lock = threading.Condition()
        self._gradients: dict[str, _Gradient] = {}
        self._rows: list[_Lane] = []
        self._comms: list[Any] = []
        self._carriers: list[Carrier] = []
        self._loaded: Sequence[Any] | None = None
        self._steps = 0
        self._recording: Recording | None = None
        self._error: BaseException | None = None

    # ------------------------------------------------------------------------------------------ declaration

    def declare(self, name: str, like: Any) -> None:
        """There is a gradient of this name, with the shape and dtype of `like`: as the forward pass uses them."""
        with self._lock:
            if self._rows:
                raise self._ended(ArgumentError(f"declare({name!r}) comes too late: the first ready() has ended it"))
            if not isinstance(name, str) or name in self._gradients:
                raise self._ended(ArgumentError(f"declare({name!r}): a name is a text, and is declared once"))
            tensor = _tensor(name, like)
            if tensor is None:
                raise self._ended(ArgumentError(f"declare({name!r}): expected an array of floats, got {_what(like)}"))
            self._gradients[name] = _Gradient(len(self._gradients), tensor, like)

    def seal(self) -> None:
        """No more is declared.  All ranks together; the first `ready` or `step` calls it."""
        with self._lock:
            self._seal()

    def _seal(self) -> None:
        if self._rows or not self._gradients:
            return
        tensors = [gradient.tensor for gradient in self._gradients.values()]
        serial = _made.get(self.comm, 0)
        fewer = self.codec if self.method is None else self.method.name
        mine = [serial, self.order, self.lanes, self.slice, self.fuse, None if fewer is None else str(fewer)]
        told = [[gradient.tensor.name, gradient.tensor.dtype, list(gradient.shape)] for gradient in self._all]
        rows = self.comm.share([mine, told], "Scheduler: the first ready()")
        for rank, (settings, declared) in enumerate(rows):
            if settings != rows[0][0]:
                raise MismatchError(f"Scheduler: rank {rank} has {_settings(settings)}, rank 0 {_settings(rows[0][0])}")
            if declared != rows[0][1]:
                raise MismatchError(f"Scheduler: {_difference(rank, declared, rows[0][1])}")
        _made[self.comm] = serial + 1
        count = 1 if self.order == "fifo" else min(self.lanes, len(tensors))
        self._comms = [self.comm.lane(f"overlap.{serial}.{i}", count // 2 - i) for i in range(count)]
        self._carriers = [Carrier(comm, self.codec, self.method) for comm in self._comms]
        if self._loaded is not None:
            self._load(self._loaded)
        places = range(len(tensors))
        urgency = [self._gradient(name).place for name in self.order] if not isinstance(self.order, str) else [*places]
        urgency += [i for i in places if i not in set(urgency)]
        self._deal(urgency, [*reversed(places)])
        self._recording = Recording() if isinstance(self.order, str) and self.order in RECORDED else None

    @property
    def _all(self) -> list[_Gradient]:
        return list(self._gradients.values())

    def _deal(self, urgency: Sequence[int], made: Sequence[int]) -> None:
        tensors, every = [gradient.tensor for gradient in self._all], self._all
        total = sum(tensor.nbytes for tensor in tensors)
        auto = min(MOST, max(LEAST, total // UNITS))
        slice, fuse = (auto if given is None else given for given in (self.slice, self.fuse))
        apart = self.codec is not None or self.method is not None
        dealt = deal(tensors, urgency, made, len(self._comms), slice, fuse, apart)
        self._rows = [_Lane(carrier, row) for carrier, row in zip(self._carriers, dealt, strict=False)]
        for gradient in every:
            gradient.sent = []
        for sent in (sent for lane in self._rows for sent in lane.units):
            at = 0
            for tensor, begin, end in sent.unit.pieces:
                every[tensor].sent.append((sent, at, begin, end))
                at += end - begin
            for i, tensor in enumerate(sent.unit.told):
                every[tensor].told = sent, at + i
            if sent.unit.bucket:
                sent.buffer = _empty(every[(sent.unit.pieces or [sent.unit.told])[0][0]].like, at + len(sent.unit.told))

    # --------------------------------------------------------------------------------------------- each step

    def ready(self, name: str, grad: Any) -> None:
        """This tensor's gradient is there.  Returns at once; its average will be in `grad`, which stays untouched until
        then.  From any thread, in any order; once a step.
        """
        with self._lock:
            gradient = self._gradient(name)
            self._seal()
            if _tensor(name, grad) != gradient.tensor or tuple(grad.shape) != gradient.shape:
                wanted = f"{gradient.tensor.dtype}{gradient.shape}"
                raise self._ended(ArgumentError(f"ready({name!r}): declared as {wanted}, got {_what(grad)}"))
            if gradient.fresh:
                raise self._ended(ArgumentError(f"ready({name!r}) comes twice in step {self._steps}"))
            if gradient.array is not None and not gradient.own:
                self._settle(gradient)  # zeros of an earlier step, which nobody waited for
            if gradient.array is not None:
                raise self._ended(ArgumentError(f"ready({name!r}): its last average was not waited for"))
            gradient.take(grad, own=True)
            if self._recording is not None:
                self._recording.ready(gradient.place)
            self._issue_all(name)

    def step(self) -> list[str]:
        """The backward pass has ended here: what was not made ready counts as zeros.  The names of those.

        All ranks call it once a step.  A tensor that no rank made ready has no average: `wait` returns None.
        """
        with self._lock:
            self._seal()
            late = [name for name, gradient in self._gradients.items() if not gradient.fresh]
            for name in late:
                gradient = self._gradients[name]
                if gradient.array is not None and gradient.own:
                    raise self._ended(ArgumentError(f"step(): the last average of {name!r} was not waited for"))
                self._settle(gradient)
                if gradient.zeros is None:
                    gradient.zeros = _empty(gradient.like, gradient.tensor.elements).reshape(gradient.shape)
                gradient.zeros[...] = 0
                gradient.take(gradient.zeros, own=False)
            self._issue_all(", ".join(late[:3]) or "all")
            for gradient in self._all:
                gradient.fresh = False
            for lane in self._rows:
                lane.next = 0
            self._steps += 1
            if self._recording is not None and self._steps == 2:
                self._follow_record(self._recording)
        return late

    def _follow_record(self, recording: Recording) -> None:
        """Deal again, by what rank 0 has seen.  All of this step is issued, so all rows stand at their beginning."""
        assert isinstance(self.order, str)
        step = recording.recorded(len(self._gradients))
        urgency = RECORDED[self.order](step, [gradient.tensor.nbytes for gradient in self._all])
        urgency, made = self.comm.share([urgency, step.made] if self.comm.rank == 0 else None, "Scheduler.step()")[0]
        for gradient in self._all:  # they will have other units
            self._finish(gradient)
        self._recording = None
        self._deal(urgency, made)

    def wait(self, name: str, timeout: float | None = None) -> Any:
        """The average of this tensor, when it is there: what `ready` was given.  None if no rank made it ready.

        A rank that had not made it ready at `step` gets memory of the scheduler's, which the next `step` may change.
        `timeout`: seconds.  Raises ArgumentError if this rank has not made it ready, unless a `timeout` is given, in
        which another thread may; TimeoutError; ArgumentError on all ranks if the average holds a NaN or an infinity.
        """
        began = time.perf_counter()
        until = began + (self.comm.config.timeout if timeout is None else timeout)
        with self._lock:
            gradient = self._gradient(name)
            if gradient.array is None and timeout is None:
                raise self._ended(ArgumentError(f"wait({name!r}) comes before ready({name!r}), or twice"))
            while gradient.array is None or gradient.left:
                self._await(gradient, until)
        try:
            self._finish(gradient, until)
            ended = time.perf_counter()
            result = gradient.array
        except Error as error:
            raise _naming(error, name) from error
        with self._lock:
            gradient.times[2:] = [ended, ended - began]
            gradient.array = gradient.flat = None
            if self._recording is not None:
                self._recording.waited(gradient.place, began, ended, ended - gradient.times[1])
        if self.finite and result is not None and not _finite(result):
            raise ArgumentError(f"wait({name!r}): the average holds a NaN or an infinity, from some rank's gradient")
        return result

    def report(self) -> list[Timing]:
        """One row for each tensor, of its last step that was waited for, in the order of declaration."""
        with self._lock:
            return [self._row(name, gradient) for name, gradient in self._gradients.items()]

    def _row(self, name: str, gradient: _Gradient) -> Timing:
        ready, issued, ended, exposed = gradient.times
        ranks = None
        if gradient.told is not None and not gradient.fresh:
            sent, at = gradient.told
            if sent.work is not None and sent.work.done():
                ranks = round(float(sent.buffer[at]) * self.comm.size)
        return Timing(name, gradient.tensor.nbytes, max(0.0, issued - ready), max(0.0, ended - issued), exposed, ranks)

    def state_dict(self) -> dict[str, Any]:
        """What this rank's compressors owe, lane by lane: for any checkpoint."""
        with self._lock:
            states = [carrier.compressor.state_dict() for carrier in self._carriers if carrier.compressor is not None]
            return {"kind": "scheduler/1", "size": self.comm.size, "rank": self.comm.rank, "compressors": states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from this rank's `state_dict()`, with the same declarations and settings on as many ranks."""
        if not isinstance(state, dict) or state.get("kind") != "scheduler/1" or state.get("size") != self.comm.size:
            raise ArgumentError(f"load_state_dict(): expected what state_dict() gave on {self.comm.size} ranks")
        with self._lock:
            self._loaded = state["compressors"]
            if self._carriers:
                self._load(state["compressors"])

    def _load(self, states: Sequence[Any]) -> None:
        there = [carrier.compressor for carrier in self._carriers if carrier.compressor is not None]
        if len(there) != len(states):
            raise self._ended(ArgumentError(f"load_state_dict(): of {len(states)} lanes, here are {len(there)}"))
        for compressor, state in zip(there, states, strict=True):
            compressor.load_state_dict(state)

    # ----------------------------------------------------------------------------------------------- inside

    def _gradient(self, name: str) -> _Gradient:
        found = self._gradients.get(name)
        if found is None:
            raise self._ended(ArgumentError(f"{name!r} was not declared; {choices(name, self._gradients)}"))
        return found

    def _issue_all(self, names: str) -> None:
        """Issue what may go, on all lanes, the highest first."""
        every = self._all
        try:
            for lane in self._rows:
                while self._may_go(every, lane):
                    self._issue(every, lane)
        except Error as error:
            raise _naming(error, names) from error
        self._lock.notify_all()

    def _may_go(self, every: Sequence[_Gradient], lane: _Lane) -> bool:
        if lane.next == len(lane.units):
            return False
        unit = lane.units[lane.next].unit
        return all(every[i].fresh for i in (*(piece.tensor for piece in unit.pieces), *unit.told))

    def _issue(self, every: Sequence[_Gradient], lane: _Lane) -> None:
        sent, now = lane.units[lane.next], time.perf_counter()
        unit = sent.unit
        if unit.bucket:
            at = 0
            for tensor, begin, end in unit.pieces:
                sent.buffer[at : at + end - begin] = every[tensor].flat[begin:end]
                at += end - begin
            for i, tensor in enumerate(unit.told):
                sent.buffer[at + i] = float(every[tensor].own)
            x = sent.buffer
        else:
            (tensor, begin, end), = unit.pieces
            x = every[tensor].flat[begin:end]
        sent.work = lane.carrier.average(x, [_key(every[i].tensor, begin, end) for i, begin, end in unit.pieces])
        lane.next += 1
        for tensor in {*(piece.tensor for piece in unit.pieces), *unit.told}:
            gradient = every[tensor]
            gradient.times[1] = gradient.times[1] or now
        for tensor in [*(piece.tensor for piece in unit.pieces), *unit.told]:
            every[tensor].left -= 1

    def _await(self, gradient: _Gradient, until: float) -> None:
        """Let other threads make ready what this one waits for, for a moment."""
        name, left = gradient.tensor.name, until - time.perf_counter()
        if self._error is not None:
            raise _naming(self._error, name)
        if self.comm.lost:
            raise PeerLostError(f"wait({name!r}): ranks {list(self.comm.lost)} were lost", self.comm.lost)
        if left <= 0:
            missing = ", ".join(self._before(gradient)) or name
            raise TimeoutError(f"wait({name!r}): on rank {self.comm.rank} these are not ready: {missing}")
        self._lock.wait(min(left, LOOK))

    def _before(self, gradient: _Gradient) -> list[str]:
        """What this tensor's units wait for on this rank."""
        every = self._all
        for lane in self._rows:
            row = list(dict.fromkeys(piece.tensor for sent in lane.units for piece in sent.unit.pieces))
            if gradient.place in row:
                return [every[i].tensor.name for i in row[: row.index(gradient.place) + 1] if not every[i].fresh]
        return []

    def _settle(self, gradient: _Gradient) -> None:
        """Nobody waited for the zeros of an earlier step."""
        self._finish(gradient)
        gradient.array = gradient.flat = None

    def _finish(self, gradient: _Gradient, until: float | None = None) -> None:
        """Wait for its units, and copy its average to where it belongs; None, if no rank made it ready."""
        if gradient.array is None or gradient.there:
            return
        for sent, at, begin, end in gradient.sent:
            self._arrived(sent, until)
            if sent.unit.bucket:
                gradient.flat[begin:end] = sent.buffer[at : at + end - begin]
        if not _one_memory(gradient.array):
            gradient.array[...] = gradient.flat.reshape(gradient.shape)
        if not gradient.own and gradient.told is not None:
            sent, at = gradient.told
            self._arrived(sent, until)
            gradient.array = gradient.array if float(sent.buffer[at]) > 0 else None
        gradient.there = True

    def _arrived(self, sent: _Sent, until: float | None) -> None:
        if not sent.work.wait(None if until is None else max(0.0, until - time.perf_counter())):
            raise TimeoutError("its average has not come in time; other ranks may not have made it ready")

    def _ended(self, error: Error) -> Error:
        """This rank fails: so do all others, in calls that wait for it."""
        if self._error is None:
            self._error = error
            for comm in self._comms or [self.comm]:
                comm.abort(error)
            self._lock.notify_all()
        return error


def _tensor(name: str, like: Any) -> Tensor | None:
    """None: it is no array of floats."""
    dtype = str(getattr(like, "dtype", "")).removeprefix("torch.")
    if dtype not in FLOATS or not hasattr(like, "shape"):
        return None
    count = int(np.prod(tuple(like.shape), dtype=np.int64))
    return Tensor(name, count, dtype, 8 if dtype == "float64" else 4 if dtype == "float32" else 2)


def _bytes(value: int | str | None, what: str) -> int | None:
    """None: "auto"."""
    return None if value == "auto" else whole(0 if value is None else value, what)


def _key(tensor: Tensor, begin: int, end: int) -> str:
    """Of a piece, for a compressor."""
    return tensor.name if end - begin == tensor.elements else f"{tensor.name}[{begin}:{end}]"


def _what(value: Any) -> str:
    return f"{value.dtype}{tuple(value.shape)}" if hasattr(value, "shape") and hasattr(value, "dtype") else kind(value)


def _empty(like: Any, count: int) -> Any:
    """Memory for so many elements, as NumPy's or torch's."""
    return like.new_empty(count) if hasattr(like, "new_empty") else np.empty(count, like.dtype)


def _one_memory(array: Any) -> bool:
    """Does `array.reshape(-1)` share its memory?"""
    return bool(array.is_contiguous() if hasattr(array, "is_contiguous") else array.flags.c_contiguous)


def _finite(array: Any) -> bool:
    """The sum says yes at once; a sum that overflows is looked at again."""
    return bool(abs(float(array.sum())) < np.inf) or bool((abs(array) < np.inf).all())


def _settings(found: Sequence[Any]) -> str:
    _, order, lanes, slice, fuse, codec = found
    return f"order={order!r}, lanes={lanes}, slice={slice}, fuse={fuse}, codec or compressor {codec} (None: auto)"


def _difference(rank: int, declared: Sequence[Any], others: Sequence[Any]) -> str:
    """The first tensor in which this rank's declaration differs from rank 0's."""
    for i in range(max(len(declared), len(others))):
        here, there = (rows[i] if i < len(rows) else None for rows in (declared, others))
        if here != there:
            words = [f"{row[0]!r}, {row[1]}{tuple(row[2])}" if row else "nothing more" for row in (here, there)]
            return f"rank {rank} declared {words[0]} as tensor {i}, rank 0 {words[1]}"
    return f"rank {rank} declared other tensors than rank 0"


def _naming(error: BaseException, name: str) -> BaseException:
    """The same error, whose text begins with the tensor's name."""
    made = type(error)(f"{name}: {error}")
    vars(made).update(vars(error))
    return made.with_traceback(error.__traceback__)
