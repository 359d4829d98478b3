"""The policy of programs that declare their tensors: an order that needs no coordinator and no message.

The law.  Every rank declares the same tensors in the same order, that of their use in the forward pass.  Declaration
alone fixes to which lane a tensor belongs, and where it stands in that lane's row (dealing.py).  A rank issues the next
unit of a row when its tensors are ready here; what comes too early waits for those before it in its own row, never for
another lane.  The engine serves higher lanes first, and holds lower ones while a higher one moves.

No deadlock.  Take the earliest step with something unfinished.  What its computation waits for is of earlier steps, so
every rank makes its tensors ready, and `step` supplies those that it does not.  In each lane, from the highest down,
take the first unfinished unit: those before it have ended on all ranks, so each rank has issued it.  A call that all
members have issued on an idle lane ends: lanes wait only for higher ones, and only while these move
(collectives/waiting/progress.pyx).  By induction over lanes, units and steps everything ends.

ByteScheduler's one credit for all lanes would break this: two ranks may spend it on two lanes that wait for each other.
Here each class has a credit of its own: as many lanes of one priority, to which its units are dealt in turns.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from hocket.arguments import choices
from hocket.errors import ArgumentError, Error, MemoryError, PeerLostError, TimeoutError
from hocket.recording import GradientSpan
from hocket.training.overlap.arrays import described, fit, line, tensor_of
from hocket.training.overlap.carrier import Carrier, restore
from hocket.training.overlap.dealing import deal
from hocket.training.overlap.gradient import EARLY, Dealt, Lane, Timing, naming, placed
from hocket.training.overlap.orders import RECORDED, tic
from hocket.training.overlap.record import Recording
from hocket.training.overlap.settings import Settings, agree

LOOK = 0.2
"""Seconds between two looks of who waits for another thread: has a rank been lost?"""
UNITS, MOST = 64, 4 << 20
"""`slice="auto"` and `fuse="auto"`: a 64th of all bytes, at most that.  VGG-19's model has its best iteration at 30 to
100 slices, and a bucket that is much longer than a slice holds up the layer that is needed first."""
LEAST_SLICE, LEAST_BUCKET = 2 << 20, 64 << 10
"""And at least these.  Between hosts a slice costs some 0.3 ms beside its bytes, in which its lane sends nothing: with
slices of 200 KB a step of 130 ms took 16 more (lab/overlap/training.py, one rank on each host)."""


class Declared:
    """Each method is `Scheduler`'s of this name."""

    def __init__(self, comm: Any, settings: Settings) -> None:
        self.comm, self.settings = comm, settings
        self._lock = threading.Condition()
        self._gradients: dict[str, Dealt] = {}
        self._all: list[Dealt] = []
        """The same, in order."""
        self._lanes: list[Lane] = []
        self._carriers: list[Carrier] = []
        self._loaded: Sequence[Any] | None = None
        self._steps = 0
        self._recording: Recording | None = None
        self._recorder = comm.recorder() if comm.config.recorder else None
        self._on = ""
        """A part of the names of the lanes."""
        self._error: BaseException | None = None

    # ------------------------------------------------------------------------------------------ declaration

    def declare(self, name: str, like: Any) -> None:
        with self._lock:
            if self._lanes:
                raise self._ended(ArgumentError(
                    f"declare({name!r}) comes too late: declare all before the first ready()"
                ))
            tensor = fit("declare", name, like, self.settings.method)
            if isinstance(tensor, str):
                raise self._ended(ArgumentError(tensor))
            if name in self._gradients:
                raise self._ended(ArgumentError(f"declare({name!r}): a name must be declared once"))
            self._gradients[name] = Dealt(len(self._gradients), tensor, like)
            self._all.append(self._gradients[name])

    def seal(self) -> None:
        with self._lock:
            self._seal()

    def _seal(self) -> None:
        if self._lanes or not self._gradients:
            return
        settings, every = self.settings, self._all
        named = [] if isinstance(settings.order, str) else [self._gradient(name).place for name in settings.order]
        urgency = list(dict.fromkeys([*named, *range(len(every))]))
        lanes = self._dealt(urgency, [*reversed(range(len(every)))])  # MemoryError while nothing was sent
        declared = [[gradient.tensor.name, gradient.tensor.dtype, list(gradient.shape)] for gradient in every]
        self._on, credit = f"overlap.{agree(self.comm, settings, declared)}.", settings.credit
        names = {f"{self._on}{i}": self._classes() // 2 - i // credit for i in range(self._classes() * credit)}
        method = settings.codec, settings.method, settings.passes
        self._carriers = [Carrier(each, *method) for each in self.comm.lanes(names)]
        if self._loaded is not None:
            self._load(self._loaded)
        self._stand(lanes)
        self._recording = Recording() if settings.order == RECORDED else None

    def _classes(self) -> int:
        return 1 if self.settings.order == "fifo" else min(self.settings.lanes, len(self._all))

    def _stand(self, lanes: list[Lane]) -> None:
        for lane, carrier in zip(lanes, self._carriers, strict=False):
            lane.carrier = carrier
        self._lanes = lanes

    def _dealt(self, urgency: Sequence[int], made: Sequence[int]) -> list[Lane]:
        """The lanes, with their units, and the memory of these."""
        every = self._all
        tensors = [gradient.tensor for gradient in every]
        part = sum(tensor.nbytes for tensor in tensors) // UNITS
        slice, fuse = (
            min(MOST, max(least, part)) if given is None else given
            for given, least in ((self.settings.slice, LEAST_SLICE), (self.settings.fuse, LEAST_BUCKET))
        )
        if self.settings.method is not None:
            slice = 0  # a compressor gets tensors whole
        credit = self.settings.credit
        whole = deal(tensors, urgency, made, self._classes(), slice, fuse, self.settings.apart)
        lanes = [Lane(row[turn::credit]) for row in whole for turn in range(credit)]
        placed(lanes, every)
        return lanes

    # --------------------------------------------------------------------------------------------- each step

    def ready(self, name: str, grad: Any, earlier: Sequence[Any] = ()) -> None:
        with self._lock:
            gradient = self._gradient(name)
            self._seal()
            if tensor_of(name, grad) != gradient.tensor or tuple(grad.shape) != gradient.shape:
                wanted = f"{gradient.tensor.dtype}{gradient.shape}"
                raise self._ended(ArgumentError(f"ready({name!r}): declared as {wanted}, got {described(grad)}"))
            if wrong := gradient.untaken(grad):
                raise self._ended(ArgumentError(wrong))
            gradient.take(grad, True, [line(each) for each in earlier])
            now = time.monotonic_ns()
            self._trace(name, now, now, gradient.tensor.nbytes)
            if self._recording is not None:
                self._recording.ready(gradient.place)
            self._issue_all(name)

    def step(self) -> list[str]:
        with self._lock:
            self._seal()
            late = [name for name, gradient in self._gradients.items() if not gradient.fresh]
            for gradient in map(self._gradient, late):
                if gradient.owed:
                    raise self._ended(ArgumentError(f"step(): {gradient.owed}"))
                gradient.make_zeros()
            for gradient in map(self._gradient, late):
                gradient.take_zeros()
            self._issue_all(", ".join(late[:3]) or "all")
            for gradient in self._all:
                gradient.fresh = False
            for lane in self._lanes:
                lane.begin()
            self._steps += 1
            if self._recording is not None and self._steps == 2:
                self._follow_record(self._recording)
        return late

    def _follow_record(self, recording: Recording) -> None:
        """Deal again, by what rank 0 has seen.  All of this step is issued, so all rows stand at their beginning."""
        step = recording.recorded(len(self._gradients))
        urgency, made = self.comm.share([tic(step), step.made] if self.comm.rank == 0 else None, "Scheduler.step()")[0]
        for gradient in self._all:  # they will have other units
            gradient.finish()
        self._recording = None
        try:
            self._stand(self._dealt(urgency, made))
        except MemoryError as error:  # the others have dealt
            raise self._ended(error) from None

    def wait(self, name: str, timeout: float | None) -> Any:
        began = time.perf_counter()
        until = began + (self.comm.config.timeout if timeout is None else timeout)
        with self._lock:
            gradient = self._gradient(name)
            if not gradient.due and timeout is None:
                raise self._ended(ArgumentError(EARLY.format(name)))
            while not gradient.due or gradient.left:
                self._await(gradient, until)
        try:
            gradient.finish(until)
        except Error as error:
            raise naming(error, name) from error
        ended, result = time.perf_counter(), None if gradient.unused else gradient.array
        self._trace(name, int(began * 1e9), int(ended * 1e9))
        with self._lock:
            gradient.waited(began, ended)
            if self._recording is not None:
                self._recording.waited(gradient.place, began, ended)
        return result

    def report(self) -> list[Timing]:
        with self._lock:
            return [gradient.timing(gradient.ranks(self.comm.size)) for gradient in self._all]

    # ------------------------------------------------------------------------------------------------- state

    def state(self) -> list[Any]:
        """The vectors that this rank's compressors owe, lane by lane."""
        with self._lock:
            if not self._carriers:
                return [*(self._loaded or ())]
            carriers = [carrier for carrier in self._carriers if carrier.compressor is not None]
        return [carrier.state() for carrier in carriers]  # others may go on meanwhile

    def load(self, states: list[Any]) -> None:
        """Go on from `state`; before `seal`, too."""
        with self._lock:
            self._loaded = states
            if self._carriers:
                self._load(states)

    def _load(self, states: Sequence[Any]) -> None:
        compressors = [carrier.compressor for carrier in self._carriers if carrier.compressor is not None]
        for carrier in self._carriers:
            carrier.settle()  # it counts for what was before
        try:
            restore(compressors, states)
        except ArgumentError as error:
            raise self._ended(error) from None

    def close(self) -> None:
        for carrier in self._carriers:
            carrier.close()

    # ----------------------------------------------------------------------------------------------- inside

    def _trace(self, name: str, begin: int, end: int, nbytes: int | None = None) -> None:
        """Tell a trace that a gradient is ready, with so many bytes; None: that it was waited for."""
        if self._recorder is not None and self._recorder.traced:
            order = self.settings.order if isinstance(self.settings.order, str) else "names"
            text = f"wait {name}" if nbytes is None else f"ready {name} ({nbytes} B, {order})"
            self._recorder.span(text, begin, end, "gradients", GradientSpan(name, nbytes or 0, order, self._on))

    def _gradient(self, name: str) -> Dealt:
        gradient = self._gradients.get(name)
        if gradient is None:
            raise self._ended(ArgumentError(f"{name!r} was not declared; {choices(name, self._gradients)}"))
        return gradient

    def _issue_all(self, names: str) -> None:
        """Issue what may go, on all lanes, the highest first."""
        every = self._all
        try:
            for lane in self._lanes:
                while (sent := lane.due()) is not None:
                    sent.issue(every, lane.carrier)
                    lane.next += 1
                    now = time.perf_counter()
                    for gradient in (every[i] for i in sent.tensors):
                        gradient.times[1] = gradient.times[1] or now
                        gradient.left -= 1
        except Error as error:
            raise naming(error, names) from error
        self._lock.notify_all()

    def _await(self, gradient: Dealt, until: float) -> None:
        """Let other threads make ready what this one waits for, for a moment."""
        name, left = gradient.tensor.name, until - time.perf_counter()
        if self._error is not None:
            raise naming(self._error, name)
        if self.comm.lost:
            lost = [self.comm.members[r] for r in self.comm.lost]
            raise PeerLostError(f"wait({name!r}): ranks {lost} were lost", self.comm.lost)
        if left <= 0:
            missing = ", ".join(self._before(gradient)) or name
            raise TimeoutError(f"wait({name!r}): these are not ready on this rank: {missing}")
        self._lock.wait(min(left, LOOK))

    def _before(self, gradient: Dealt) -> list[str]:
        """The tensors that this one's units wait for on this rank."""
        every = self._all
        for lane in self._lanes:
            row = list(dict.fromkeys(piece.tensor for sent in lane.units for piece in sent.unit.pieces))
            if gradient.place in row:
                return [every[i].tensor.name for i in row[: row.index(gradient.place) + 1] if not every[i].fresh]
        return []

    def _ended(self, error: Error) -> Error:
        """This rank fails: so do all others, in calls that wait for it."""
        if self._error is None:
            self._error = error
            for comm in [carrier.comm for carrier in self._carriers] or [self.comm]:
                comm.abort(error)
            self._lock.notify_all()
        return error
