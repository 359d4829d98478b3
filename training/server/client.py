"""`Client`: a worker's end of all shards.

Whoever waits for an answer receives what comes, on the link that the answer will come by; only for asynchronous pulls
that nobody waits for yet, a thread receives, so that they arrive while the caller computes.
"""

from __future__ import annotations

import contextlib
import logging
import math
import secrets
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

import hocket
from hocket.arguments import whole
from hocket.errors import ArgumentError, Error, PeerLostError, TimeoutError
from hocket.training.server import frames
from hocket.training.server.encoding import Encoder, wire_codec
from hocket.training.server.frames import ANSWER, BYE, Frame, framed, message
from hocket.training.server.handles import Handle, Open, take_answer
from hocket.training.server.link import Shared
from hocket.training.server.member import Member
from hocket.training.server.optimizers import Array
from hocket.training.server.outbox import Outbox
from hocket.training.server.serve import Server
from hocket.training.server.store import Change, What
from hocket.training.server.tables import Layout, Rows, Table, as_keys, shares
from hocket.training.server.views import Says, View

log = logging.getLogger("hocket")
WINDOW = 8 << 20
MOST = 64
"""Pushes of a worker to a shard that are not acknowledged yet, at most."""
LOOK, AGAIN = 0.05, 0.1
"""Seconds between two looks for a view, and between two attempts to reach a server."""
REACH = 5.0
"""Seconds in which a server has to accept."""


class Client:
    """A worker.  All ranks that do not `serve` make one, with the same tables; or `Client(server)` on one that does.

    `window`: bytes of pushes on their way, at most.  `codec`: of pushes ("int8", "fp8", "int4", "sign"), whose loss is
    added to the next push of the same table; `answers`: of pulls.  `timeout`: seconds that it waits for a new head of
    a shard that is lost.  The rest: as in `hocket.connect`.

    `clock`: how often it has ticked.  `lost`: changes that servers had acknowledged and lost, without copies.
    """

    def __init__(
        self, comm: Any, tables: Mapping[str, Table] | None = None, *, codec: Any = None, answers: Any = None,
        window: int = WINDOW, timeout: float = 60.0, **how: Any,
    ) -> None:  # fmt: skip
        server = comm if isinstance(comm, Server) else None
        self.uid = server.uid if server is not None else secrets.randbits(48)
        self._tables = server._tables if server is not None else tables
        self.layout = Layout(self._tables, 1)  # type: ignore[arg-type]
        self.who = f"rank {server.member.comm.rank if server is not None else comm.rank}: Client"
        self._encoder, self._answers = Encoder(wire_codec(codec)), wire_codec(answers)
        self._window, self._timeout, self._how = whole(window, "window"), timeout, how
        self.clock = 0
        self.outboxes: list[Outbox] = []
        self._state = threading.Lock()
        self._viewed, self._installing = threading.Condition(), threading.Lock()
        self._of: list[Shared | None] = []
        self._links: dict[int, Shared] = {}
        self._open: dict[tuple[int, int], Open] = {}
        self._load: list[list[int]] = []
        self._view: View | None = None
        self._out = False
        if server is not None:
            if not server.works or server.view is None:
                raise ArgumentError(f"{self.who}: serve(..., works=True) is needed on a rank that has a client, too")
            self._member, self._elastic = None, server.member.elastic
            server.installed.append(self._install)
            self._install(server.view)
        else:
            says = Says(self.uid, True, "", {}, 0, self.layout.said(), [])
            self._member = Member(comm, lambda: says, self._install, self.who)
            self._elastic = self._member.elastic
        self._join()

    # --- what users call

    def push(self, name: str, values: Any, rows: Any = None, *, async_op: bool = False) -> Any:
        """Give a table's optimizer these values: an array of its shape, or, with `rows`, one row for each key.

        Returns when all servers have acknowledged it; with async_op=True at once, a `Handle`, and `values` must not
        change before that has ended.  Raises ArgumentError (a shape, a key, a number that is not finite) and
        PeerLostError.
        """
        number, table = self._table(name)
        array = self._checked(table, name, values, rows)
        handle = Handle(None, self._wait)
        if isinstance(table, Rows):
            keys = as_keys(rows)
            for shard, where in self._dealt(keys):
                self._change(handle, shard, name, Change(number, 0, keys[where], array[where].reshape(-1)), (0, 0))
        else:
            flat = array.reshape(-1)
            for part in self.layout.parts[number]:
                change = Change(number, part.number, None, flat[part.first : part.end])
                self._change(handle, part.shard, name, change, (part.first, part.end))
        return handle if async_op else handle.wait()

    def pull(self, name: str, rows: Any = None, *, out: Any = None, async_op: bool = False) -> Any:
        """A table's values, or those of these rows, in a new array or in `out`.

        It sees what all workers have pushed up to the bound of the clock's rule, and all that this one has pushed.
        With async_op=True a `Handle`: they come while the caller computes.
        """
        handle = self._begin_pull(name, rows, out, alone=async_op)
        return handle if async_op else handle.wait()

    def push_pull(self, name: str, values: Any, rows: Any = None, *, out: Any = None, async_op: bool = False) -> Any:
        """`push`, then `pull` of the same table or rows, without a wait in between."""
        pushed = self.push(name, values, rows, async_op=True)
        handle = self._begin_pull(name, rows, out, alone=async_op)
        handle.first = pushed
        return handle if async_op else handle.wait()

    def tick(self) -> int:
        """This worker has ended a clock.  Its new one.  Does not wait."""
        self.clock += 1
        for shard in range(len(self.outboxes)):
            self._submit(shard, lambda outbox: outbox.tick(self.clock), None)
        return self.clock

    def table(self, name: str) -> Table:
        """What was said of it: `Range` or `Rows`."""
        return self._table(name)[1]

    @property
    def generation(self) -> int:
        """Of the view that it has: how often servers or workers were lost or came."""
        return -1 if self._view is None else self._view.generation

    @property
    def lost(self) -> int:
        return sum(outbox.lost for outbox in self.outboxes)

    def close(self) -> None:
        """Wait until all pushes are acknowledged, and leave."""
        if self._out:
            return
        for shard in range(len(self.outboxes)):
            self._submit(shard, lambda outbox: outbox.tick(None), None)
        for shard, outbox in enumerate(self.outboxes):
            self._until(lambda outbox=outbox: not outbox.pushes, lambda shard=shard: shard, None)
        for link in self._links.values():
            with contextlib.suppress(Error):
                link.send(Frame([BYE] * frames.WORDS))
        self._leave()

    def _leave(self) -> None:
        self._out = True
        for link in self._links.values():
            link.wanted.set()
            link.close()
        if self._member is not None:
            self._member.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:  # what is on its way may be lost
            self._leave()

    # --- out

    def _table(self, name: str) -> tuple[int, Table]:
        number = self.layout.number(name)
        return number, self.layout.tables[number]

    def _checked(self, table: Table, name: str, values: Any, rows: Any) -> Array:
        array = np.ascontiguousarray(values, dtype=table.dtype)
        shape = (len(as_keys(rows)), table.width) if isinstance(table, Rows) else table.shape
        if array.shape != shape:
            raise ArgumentError(f"{self.who}: table {name!r} takes values of shape {shape}, got {array.shape}")
        return array

    def _dealt(self, keys: Array) -> list[tuple[int, Array]]:
        """For each shard that has some of the keys, their places."""
        shards = shares(keys) % len(self.outboxes)
        return [(shard, np.flatnonzero(shards == shard)) for shard in np.unique(shards).tolist()]

    def _change(self, handle: Handle, shard: int, name: str, change: Change, part: tuple[int, int]) -> None:
        change = self._encoder.encoded(name, change)
        handle.count += 1
        self._submit(shard, lambda outbox: outbox.push(change), Open(handle, part, change.values.nbytes))

    def _begin_pull(self, name: str, rows: Any, out: Any, alone: bool) -> Handle:
        number, table = self._table(name)
        keys = as_keys(rows) if isinstance(table, Rows) else None
        shape = (len(keys), table.width) if isinstance(table, Rows) else table.shape  # type: ignore[arg-type]
        result = np.empty(shape, table.dtype) if out is None else out
        if result.shape != shape or result.dtype != table.dtype or not result.flags.c_contiguous:
            raise ArgumentError(f"{self.who}: out must be a contiguous {table.dtype}{shape} for table {name!r}")
        handle, flat = Handle(result, self._wait), result.reshape(-1)
        if keys is not None:
            for shard, where in self._dealt(keys):
                what = What(number, 0, keys[where], self._answers)
                self._ask(handle, shard, what, Open(handle, (0, 0), 0, result, where, self._answers, alone))
        else:
            for part in self.layout.parts[number]:
                what, room = What(number, part.number, None, self._answers), flat[part.first : part.end]
                ends = part.first, part.end
                self._ask(handle, part.shard, what, Open(handle, ends, 0, room, None, self._answers, alone))
        return handle

    def _ask(self, handle: Handle, shard: int, what: What, entry: Open) -> None:
        handle.count += 1
        self._submit(shard, lambda outbox: outbox.pull(what), entry)

    def _submit(self, shard: int, act: Any, entry: Open | None) -> None:
        """Begin a push or a pull, and send it if the shard has a head."""
        nbytes = entry.nbytes if entry is not None else 0
        load = self._load[shard]

        def has_room() -> bool:
            return load[1] < MOST and (not load[0] or load[0] + nbytes <= self._window)

        if not has_room():
            self._until(has_room, lambda: shard, None)
        while True:
            link = self._of[shard]
            with link.ordering if link is not None else self._state:
                if self._of[shard] is not link:
                    continue
                if link is None:
                    self._begin(shard, act, entry)
                    return
                with self._state:
                    out = self._begin(shard, act, entry)
                try:
                    for each in out:
                        link.send(framed(shard, each))
                except Error as error:
                    self._lose(link, error)
                if entry is not None and entry.alone:
                    self._drive(link)
                return

    def _begin(self, shard: int, act: Any, entry: Open | None) -> list[Any]:
        number, out = act(self.outboxes[shard])
        entry = entry or Open(None, (0, 0), 0)
        self._open[shard, number] = entry
        self._load[shard][0] += entry.nbytes
        self._load[shard][1] += 1
        return out  # type: ignore[no-any-return]

    # --- in

    def _receive(self, link: Shared, timeout: float | None = None) -> bool:
        """One frame, by the thread that holds `link.receiving`.  False: the time was over."""
        words = link.words(timeout)
        if words is None:
            return False
        shard, nbytes = words[0] >> 8 & 0xFFFFFF, words[6]
        payload = None
        if words[0] & 0xFF == ANSWER:
            take_answer(link, self._open.get((shard, words[3])), nbytes)
        else:
            payload = link.payload(nbytes)
        said = message(words, None, payload)
        with self._state:
            ended, out = self.outboxes[shard].take(said)
            entries = [(each, self._open.pop((shard, each.number), None)) for each in ended]
            for _, entry in entries:
                if entry is not None:
                    self._load[shard][0] -= entry.nbytes
                    self._load[shard][1] -= 1
                    link.pulls -= entry.alone
        for each in out:
            link.post(framed(shard, each))
        for each, entry in entries:
            if entry is not None and entry.handle is not None:
                entry.handle.end(entry.part, each.why)
            elif each.why:
                log.warning("%s: %s", self.who, each.why)
        return True

    def _wait(self, handle: Handle, count: int, timeout: float | None) -> None:
        """Until so many of its parts have ended."""

        def shard() -> int:
            return next(key[0] for key, entry in list(self._open.items()) if entry.handle is handle)

        self._until(lambda: len(handle.ended) >= count or bool(handle.why), shard, timeout)

    def _until(self, true: Any, shard: Any, timeout: float | None) -> None:
        """Receive until it is true, on the link of the shard for which that is waited."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not true():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{self.who}: the servers have not answered within {timeout:g} s", [])
            try:
                place = shard()
            except StopIteration:  # it has ended meanwhile
                continue
            link = self._of[place]
            if link is None or not link.open:
                self._await_view(place, deadline)
                continue
            link.waiting += 1
            try:
                if link.receiving.acquire(timeout=min(left, 1.0)):
                    try:
                        if not true():
                            self._receive(link, None if timeout is None else left)
                    finally:
                        link.receiving.release()
            except Error as error:
                self._lose(link, error)
            finally:
                link.waiting -= 1

    def _drive(self, link: Shared) -> None:
        """Let a thread receive what is pulled, while nobody waits."""
        with self._state:
            link.pulls += 1
        link.wanted.set()
        if link.driver is None:
            link.driver = threading.Thread(target=self._driven, args=(link,), name="hocket-pull", daemon=True)
            link.driver.start()

    def _driven(self, link: Shared) -> None:
        while link.open and not self._out:
            link.wanted.wait()
            if link.pulls <= 0:
                link.wanted.clear()
                if link.pulls > 0:
                    link.wanted.set()
            elif link.waiting:
                time.sleep(1e-4)
            else:
                with link.receiving:
                    try:
                        if link.pulls > 0:
                            self._receive(link)
                    except Error as error:
                        self._lose(link, error)

    # --- views

    def _lose(self, link: Shared, error: Error) -> None:
        """The server at its other end is gone."""
        if link.open:
            log.info("%s: a link has ended: %s", self.who, error)
            link.close()
            self._reach_again()
        if not self._elastic:
            raise error

    def _reach_again(self) -> None:
        """In a thread: the head of a shard may live, and the link to it alone have ended."""
        view = self._view

        def until_linked() -> None:
            while view is not None and self._view is view and not self._out:
                time.sleep(AGAIN)
                lost = [i for i, link in enumerate(self._of) if link is None or not link.open]
                for shard in lost:
                    link = self._to(view, view.heads[shard])
                    with self._installing:
                        if link is not None and self._view is view:
                            self._greet(view, shard, link)
                if not lost:
                    return

        if self._elastic:
            threading.Thread(target=until_linked, name="hocket-relink", daemon=True).start()

    def _await_view(self, shard: int, deadline: float) -> None:
        """The shard has no head now: wait until the head of this view is reached again, or for the next view."""
        until = time.monotonic() + self._timeout
        with self._viewed:
            while True:
                link = self._of[shard]
                if link is not None and link.open:
                    return
                if self._view is None or not self._elastic or time.monotonic() > until:
                    raise PeerLostError(f"{self.who}: shard {shard} has lost its server", [])
                if time.monotonic() > deadline:
                    return
                self._viewed.wait(LOOK)

    def _install(self, view: View | None) -> None:
        with self._installing:
            if view is not None and not self._out:
                if not self.outboxes:
                    self.layout = Layout(self._tables, view.shards)  # type: ignore[arg-type]
                    self.outboxes = [Outbox(self.uid) for _ in range(view.shards)]
                    self._of, self._load = [None] * view.shards, [[0, 0] for _ in range(view.shards)]
                for shard, head in enumerate(view.heads):
                    self._greet(view, shard, self._to(view, head))
            with self._viewed:
                self._view = view
                self._viewed.notify_all()
            if None in self._of:
                self._reach_again()

    def _greet(self, view: View, shard: int, link: Shared | None) -> None:
        before = self._of[shard]
        with before.ordering if before is not None else contextlib.nullcontext(), self._state:
            self._of[shard] = link
            hello = self.outboxes[shard].view(view.generation)
        if link is not None:
            for each in hello:
                with contextlib.suppress(Error):
                    link.post(framed(shard, each))

    def _to(self, view: View, uid: int) -> Shared | None:
        """The link to a server, made if there is none.  None: it cannot be reached, so it is about to be lost."""
        link = self._links.get(uid)
        if link is None or not link.open:
            try:
                link = self._links[uid] = Shared(hocket.connect(view.addresses[uid], **{"timeout": REACH, **self._how}))
            except Error as error:
                if not self._elastic:
                    raise
                log.warning("%s: the server at %s cannot be reached: %s", self.who, view.addresses[uid], error)
                return None
        return link

    def _join(self) -> None:
        """Begin at the clock of the slowest."""
        for shard, outbox in enumerate(self.outboxes):
            self._until(lambda outbox=outbox: outbox.ready, lambda shard=shard: shard, None)
        self.clock = max(outbox.slowest for outbox in self.outboxes)
        for shard in range(len(self.outboxes)):
            self._submit(shard, lambda outbox: outbox.tick(self.clock), None)
