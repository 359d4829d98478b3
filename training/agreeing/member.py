"""One rank's part: what it submits, in which order it is told to carry it out, and its threads.

    submit        in the caller's thread: the tensor is noted, and its handle returned
    flush         rank 0 is told of all that was noted since the last time: by the thread that waits for a tensor, or,
                  while nobody waits, by the announcer, `cycle` seconds after the first of them
    follow        the thread that gets rank 0's orders and carries them out; on rank 0 also whoever waits for a tensor,
                  or has heard the last rank that was missing, carries out what it can, as waking a thread takes longer

All of them sleep while there is nothing to do.
"""

from __future__ import annotations

import collections
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import hocket
from hocket import Communicator
from hocket.errors import ArgumentError
from hocket.extending import outside_group
from hocket.training.agreeing import lists
from hocket.training.agreeing.errors import Errors
from hocket.training.agreeing.negotiator import JOIN, LEAVE, Negotiator
from hocket.training.agreeing.numbers import Numbers
from hocket.training.agreeing.order import BYE, FAIL, JOINED, RUN, Order, from_plain_order
from hocket.training.agreeing.pending import Pending
from hocket.training.agreeing.request import AUTO, Request
from hocket.training.agreeing.watcher import Watcher

EVER = 1e9
"""Seconds that control messages may wait: for as long as a rank computes."""
SMALL = 1 << 16
"""Bytes of tensors that the thread which hears other ranks carries out itself."""
Perform = Callable[[Communicator, Order, "list[Pending | None]"], "list[Any]"]
"""Carries out an order on this rank: the communicator, the order, and its tensors here (None: this rank has joined).
Returns their results."""
UNWATCHED, HOCKETS = Watcher(), Errors()


class Submitter:
    """This rank's.  All ranks of `comm` make it together, and `comm` becomes its own.

    `threshold`: bytes of small tensors that are carried out as one, at most.  `cycle`: seconds in which submitted
    tensors are collected before rank 0 is told, unless somebody waits for one.
    """

    def __init__(
        self, comm: Communicator, perform: Perform, threshold: int, cycle: float, watcher: Watcher = UNWATCHED,
        errors: Errors = HOCKETS,
    ) -> None:  # fmt: skip
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        self.watcher, self._errors = watcher, errors
        self.pending: dict[str, Pending] = {}
        self.error: BaseException | None = None
        """Why nothing works any more."""
        self._perform, self._cycle = perform, cycle
        self._outbox: list[Any] = []
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self._noted, self._over = threading.Event(), threading.Event()
        self._named: collections.Counter[str] = collections.Counter()
        self._joins = 0
        self._join: Pending | None = None
        self._numbers, self._last = Numbers(), dict[str, Request]()
        self._orders: collections.deque[Order] = collections.deque()
        """On rank 0: what is still to be carried out."""
        self._under_way: set[str] = set()
        """The tensors that a thread is carrying out: it ends them, well or not."""
        self._performing = threading.Lock()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._up = _control(comm) if self.size > 1 else None
        self._down = _control(comm) if self.size > 1 else None
        self.negotiator: Negotiator | None = None
        if self.rank == 0:
            self.negotiator = Negotiator(
                self.size, self._up, self._down, threshold, self._orders.extend, self._help, self.fail)
        self._threads = [
            threading.Thread(target=work, name=f"hocket.agreeing {work.__name__[1:]}", daemon=True)
            for work in (self._follow, self._announce)
        ]
        for thread in self._threads:
            thread.start()

    # --- what the framework calls

    def submit(self, request: Request, payload: Any, waits: bool = False) -> Pending:
        """Note a collective.  `waits`: the caller waits for it at once.

        Raises ArgumentError if the name is under way; after a failure its error.
        """
        pending = Pending(request, payload, self.flush, self._errors.turned)
        with self._lock:
            self._usable()
            if request.name in self.pending:
                raise ArgumentError(
                    f"{request.name!r} was submitted before and is still under way: wait for its handle first, or give "
                    "each tensor a name of its own")
            self.pending[request.name] = pending
            self._outbox.append(request)
        if self.watcher.on:
            self.watcher.begin(request.name, f"NEGOTIATE_{request.kind.upper()}")
        if not waits and not self._noted.is_set():
            self._noted.set()
        return pending

    def name(self, kind: str) -> str:
        """For a tensor without one: they are counted, so all ranks submit these in one order.  After join(), before
        which ranks have submitted more or fewer, the count begins again."""
        self._named[kind] += 1
        return f"{kind}{AUTO}{self._joins}.{self._named[kind]}"

    def join(self) -> Pending:
        """This rank has no more tensors: the handle of the end of all ranks' tensors, the rank that joined last."""
        with self._lock:
            self._usable()
            if self._join is not None:
                raise ArgumentError("join() was called before and is still under way")
            pending = self._join = Pending(Request("join", "join"), None, self.flush, self._errors.turned)
            self._outbox.append(JOIN)
        return pending

    def flush(self, waits: Pending | None = None) -> None:
        """Tell rank 0 of what was noted.  `waits`: what the caller waits for."""
        with self._sending:
            with self._lock:
                items, self._outbox = self._outbox, []
            if not items:
                return
            if self.watcher.cycles:
                self.watcher.cycle()
            try:
                with outside_group():
                    if self.negotiator is not None:
                        self.negotiator.take(0, items)
                    else:
                        assert self._up is not None
                        lists.send(self._up, [self._short(item) for item in items], [0])
            except BaseException as error:
                self.fail(error)
        if waits is not None:
            with outside_group():
                self._carry_out_all(waits)
        elif self._orders:
            self._wake.put(None)

    def stop(self, seconds: float, end: str) -> None:
        """Leave; wait, so long at most, until all ranks leave.  Tensors under way fail with the text `end`.

        0: without a word, as after a failure.
        """
        with self._lock:
            if self.error is None and seconds:
                self._outbox.append(LEAVE)
        self.flush()
        left = self._over.wait(seconds)
        error = self._errors.left(end)
        self.fail(error)
        deadline = time.monotonic() + 1.0
        if not left:  # threads sleep in calls that will not end
            for comm in (self._up, self._down, self.comm):
                if comm is not None:
                    comm.abort(error, tell=False)
        for thread in [*self._threads, *([self.negotiator.thread] if self.negotiator else [])]:
            if thread is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        for comm in (self._up, self._down):
            if comm is not None and left:
                comm.close()

    def give_up(self, error: BaseException) -> None:
        """This rank ends with `error`: the others must not wait for it."""
        for comm in (self._up, self._down, self.comm):
            if comm is not None:
                comm.abort(error)

    def fail(self, error: BaseException) -> None:
        """Nothing works any more: what waits ends with `error`.

        What is being carried out may still end well: another rank may have finished it before it failed.
        """
        with self._lock:
            if self.error is None:
                self.error = error
            ended = [name for name in self.pending if name not in self._under_way]
            failed = [self.pending.pop(name) for name in ended] + ([self._join] if self._join else [])
            self._join = None
        for each in failed:
            each.finish(None, self.error)
        self._over.set()
        self._noted.set()
        self._wake.put(None)

    # --- its threads

    def _announce(self) -> None:
        """While nobody waits for a tensor: tell rank 0 of several together."""
        while not self._over.is_set():
            self._noted.wait()
            if self._cycle:
                time.sleep(self._cycle)
            self._noted.clear()
            self.flush()

    def _follow(self) -> None:
        receiver = lists.ListReceiver(self._down) if self._down is not None and self.rank else None
        while not self._over.is_set():
            if receiver is None:
                self._wake.get()
            else:
                try:
                    self._orders.extend(from_plain_order(plain, self._numbers.read) for plain in receiver.next(0)[1])
                except BaseException as error:
                    self.fail(error)
            self._carry_out_all()

    def _help(self) -> None:
        """Orders may have come: carry out what is small at once, and leave the rest to the thread."""
        if not self._orders:
            return
        names = [name for order in list(self._orders) for name in order.names]
        pending = [self.pending.get(name) for name in names]
        if sum(each.request.nbytes for each in pending if each is not None) <= SMALL:
            self._carry_out_all()
        else:
            self._wake.put(None)

    def _carry_out_all(self, until: Pending | None = None) -> None:
        """Carry out the orders that are there, or those `until` something is done; not if another thread is at it."""
        while self._orders and self._performing.acquire(blocking=False):
            try:
                while self._orders and not (until is not None and until.done()):
                    self._carry_out(self._orders.popleft())
            except BaseException as error:
                self._under_way = set()
                self.fail(error)
                if not isinstance(error, hocket.Error) or isinstance(error, ArgumentError):
                    self.give_up(error)
            finally:
                self._performing.release()
            if until is not None and until.done():
                if self._orders:
                    self._wake.put(None)
                return

    def _carry_out(self, order: Order) -> None:
        if order.what == BYE:
            self._over.set()
            self._noted.set()
            self._wake.put(None)
            return
        with self._lock:
            if self.error is not None:
                return
            self._under_way = set(order.names)
        if order.what == JOINED:
            with self._lock:
                done, self._join = self._join, None
            self._joins += 1
            self._named.clear()
            if done is not None:
                done.finish(order.counts[0])
        elif order.what == FAIL:
            for name in order.names:
                self._finish(self.pending.get(name), None, self._error(order))
        else:
            self._run(order)
        self._under_way = set()

    def _run(self, order: Order) -> None:
        assert order.what == RUN
        mine = [self.pending.get(name) for name in order.names]
        for each in mine:
            if each is not None and each.request.name in self._numbers.of:
                self._last[each.request.name] = each.request
        if self.watcher.on:
            self.watcher.performing(order.names)
        results = self._perform(self.comm, order, mine)
        for each, result in zip(mine, results, strict=True):
            self._finish(each, result)

    def _finish(self, each: Pending | None, result: Any, error: BaseException | None = None) -> None:
        if each is None:
            return
        if self.watcher.on:
            self.watcher.end(each.request.name)
        with self._lock:
            pending = self.pending.pop(each.request.name, None)
        if pending is not None:  # else fail() has ended it
            each.finish(result, error)

    # --- its parts

    def _short(self, item: Any) -> Any:
        """The word for rank 0: a number, if it knows the rest."""
        if not isinstance(item, Request):
            return item
        number = self._numbers.of.get(item.name)
        if number is not None and self._last.get(item.name) == item:
            return number
        return item.plain()

    def _error(self, order: Order) -> hocket.Error:
        if order.kind == "mismatch":
            return self._errors.mismatch(order.error, dict(order.calls))
        return (self._errors.left if order.kind == "left" else self._errors.stall)(order.error)

    def _usable(self) -> None:
        if self.error is not None:
            raise self._errors.turned(self.error) from None


def _control(comm: Communicator) -> Communicator:
    """A communicator for messages that come when they come."""
    control = comm.dup(idle=True)
    control.set_timeout(EVER)
    return control
