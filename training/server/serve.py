"""`serve`: this process holds shards of the tables.

What workers and heads say (incoming.py) is given to the shard's machine (shard.py), and what that returns is sent.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import hocket
from hocket.arguments import seconds, whole
from hocket.errors import ArgumentError, Error
from hocket.training.server.incoming import Incoming
from hocket.training.server.member import Member
from hocket.training.server.optimizers import Array
from hocket.training.server.replica import Replica
from hocket.training.server.shards import snapshots
from hocket.training.server.shards.clocks import staleness
from hocket.training.server.shards.shard import HEAD
from hocket.training.server.tables import Layout, Rows, Table
from hocket.training.server.views import Says, View
from hocket.training.server.wire import frames
from hocket.training.server.wire.frames import BYE, FORWARD, PUSH, Frame, codec, framed, message
from hocket.training.server.wire.link import Link
from hocket.training.server.wire.messages import Cut, Gone, Hello, Role

log = logging.getLogger("hocket")
REACH = 5.0
"""Seconds in which another server has to accept."""
AGAIN = 0.1
"""Seconds between two attempts to reach it."""
COUNT = 1.0
"""Seconds between two looks at what has been counted."""


class Server:
    """What `serve` returns.  `wait()` until the workers have left; or use a `Client` of this rank, too, and `close()`.

    `view`: who holds what now.
    """

    def __init__(
        self, comm: Any, tables: Mapping[str, Table], on: Sequence[int] | None, clock: str, copies: int,
        snapshot: str | None, every: float | None, works: bool, **how: Any,
    ) -> None:  # fmt: skip
        self.uid, self.works = secrets.randbits(48), works
        self.who = f"rank {comm.rank}: serve"
        self.tables, self._clock, self._copies = tables, clock, copies
        self._shards = 0 if on is None else len(on)
        self.layout = Layout(tables, self._shards or 1)
        self._folder = None if snapshot is None else snapshots.Folder(snapshot, self.layout.said())
        self.replicas: dict[int, Replica] = {}
        self._workers: dict[int, Link] = {}
        self._left: set[int] = set()
        """Workers whose link has ended."""
        self._links: dict[int, Link] = {}
        """To other servers, by uid."""
        self.view: View | None = None
        self._generation = -1
        self.installed: list[Callable[[View | None], None]] = []
        """Called with each view: a client of this rank."""
        self._viewed = threading.Condition()
        self._over = threading.Event()
        self.pairs = hocket.listen(**{"iface": comm.address, **how})
        self._how = how
        self._incoming = Incoming(self.pairs, self)
        try:
            self.member = Member(comm, self._says, self._install, self.who)
        except BaseException:
            self._incoming.close()
            raise
        self._counter = threading.Thread(target=self._count, name="hocket-counts", daemon=True)
        self._counter.start()
        if self._folder is not None and every is not None:
            threading.Thread(target=self._keep, args=(every,), name="hocket-snapshot", daemon=True).start()

    # --- what users call

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no worker is left, then close.  False: `timeout` seconds were over before."""
        limit = None if timeout is None else seconds(timeout, "timeout")
        with self._viewed:
            if not self._viewed.wait_for(self._is_over, limit):
                return False
        self.close()
        return True

    def _is_over(self) -> bool:
        return self._over.is_set() or self.view is not None and not self.view.workers - self._left

    @property
    def whole(self) -> bool:
        """Does this server hold all of its shards, and, with copies=1, does the other replica of each?"""
        replicas = list(self.replicas.values())
        return bool(replicas) and all(each.shard.both if self._copies else each.shard.whole for each in replicas)

    def snapshot(self) -> None:
        """Write what this server is the head of, now."""
        if self._folder is None:
            raise ArgumentError(f"{self.who}: no folder for snapshots: serve(..., snapshot=folder)")
        for replica in list(self.replicas.values()):
            if not replica.shard.head:
                continue
            self.member.mark("server: snapshot", replica.save(self._folder))

    def close(self) -> None:
        """Serve no more.  Where ranks may be lost, the others go on with the copies."""
        if self._over.is_set():
            return
        self._over.set()
        self._counter.join()
        if self._folder is not None:
            self.snapshot()
        self._incoming.close()
        self.member.close()
        for link in [*self._links.values(), *self._workers.values()]:
            with contextlib.suppress(Error):
                link.send(Frame([BYE] * frames.WORDS))
        with self._viewed:
            self._viewed.notify_all()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- views

    def _says(self) -> Says:
        has = {str(number): replica.has for number, replica in self.replicas.items()}
        return Says(self.uid, self.works, self.pairs.address, has, self._shards, self.layout.said(),
                    [self._clock, self._copies])  # fmt: skip

    def _install(self, view: View | None) -> None:
        if view is not None:
            self._shards, (self._clock, self._copies) = view.shards, view.settings
            if self.layout.shards != view.shards:
                self.layout = Layout(self.tables, view.shards)
            for number in range(view.shards):
                self._take_role(view, number)
        with self._viewed:
            if view is None:
                self._over.set()
            else:
                self.view, self._generation = view, view.generation
            self._viewed.notify_all()
        for each in self.installed:
            each(view)

    def _take_role(self, view: View, number: int) -> None:
        head, copy = view.heads[number], view.copies[number]
        if self.uid not in (head, copy):
            self.replicas.pop(number, None)
            return
        replica = self.replicas.get(number)
        if replica is None:
            replica = Replica(self.layout, number, staleness(self._clock), whole=head == self.uid)
            if head == self.uid and self._folder is not None:
                replica.restore(self._folder)
            self.replicas[number] = replica
        link = self._to(view, copy) if head == self.uid and copy is not None else None
        role = Role(view.generation, head == self.uid, copy is not None, view.workers)
        self._send(replica, replica.take_role(role, link), None)
        if link is None and head == self.uid and copy is not None:
            self._link_again(replica, view)

    def _link_again(self, replica: Replica, view: View) -> None:
        """The copy lives as far as this view knows, and has no link: try until there is one, or another view."""

        def until_linked() -> None:
            uid = view.copies[replica.number]
            while not self._over.wait(AGAIN) and replica.shard.generation == view.generation:
                link = self._to(view, uid) if uid is not None else None
                if link is not None:
                    replica.reached(link, view.generation)
                    return

        threading.Thread(target=until_linked, name="hocket-relink", daemon=True).start()

    def _to(self, view: View, uid: int) -> Link | None:
        """The link to another server, made if there is none.  None: it cannot be reached now."""
        link = self._links.get(uid)
        if link is None or not link.open:
            try:
                link = Link(hocket.connect(view.addresses[uid], timeout=REACH, **self._how), to_server=True)
            except Error as error:
                log.warning("%s: the server at %s cannot be reached: %s", self.who, view.addresses[uid], error)
                return None
            self._links[uid] = link
            self._incoming.add(link)
        return link

    # --- links (incoming.py)

    def knows(self, words: Sequence[int]) -> bool:
        """Is the frame's shard here?  Else it may come with the next view."""
        return words[0] >> 8 & 0xFFFFFF in self.replicas

    def keeps(self, words: Sequence[int]) -> bool:
        """A push is over once it is applied, if its table does not keep it, it goes to no copy, and is of this view."""
        replica, number = self.replicas.get(words[0] >> 8 & 0xFFFFFF), words[0] >> 32
        if words[0] & 0xFF != PUSH or replica is None or not replica.now(words[1]) or replica.shard.state != "alone":
            return True
        return number < len(self.layout.tables) and self.layout.overwrites(number)

    def carry_out(self, link: Link, frame: Frame) -> None:
        """What it says.  Waits for the view that it is of, if its shard is not here."""
        words, keys, payload = frame
        if payload is not None and words[0] & 0xFF in (PUSH, FORWARD):
            payload = self._values(words, payload)
        said = message(words, keys, payload)
        if type(said) is Hello:
            self._workers[said.worker] = link
            self._left.discard(said.worker)
        number = words[0] >> 8 & 0xFFFFFF
        replica = self.replicas.get(number) or self._soon(number, words[1])
        if replica is not None:
            self._tell(replica, said, link)

    def ended(self, link: Link, error: Exception | None) -> None:
        """The link's end: its workers are gone, and copies are reached again."""
        if error is not None and not self._over.is_set():
            expected = isinstance(error, (Error, ValueError, LookupError))
            log.log(logging.INFO if expected else logging.ERROR, "%s: a link has ended: %r", self.who, error)
        link.close(None if isinstance(error, Error) else error)
        left = [who for who, its in list(self._workers.items()) if its is link]  # the others have a new link
        for who in left:
            del self._workers[who]
            self._left.add(who)
        for replica in list(self.replicas.values()):
            if replica.copy is link:
                self._tell(replica, Cut(replica.shard.generation), None)
                if self.view is not None and self.view.generation == replica.shard.generation:
                    self._link_again(replica, self.view)
            for who in left:
                self._tell(replica, Gone(who), None)
        with self._viewed:
            self._viewed.notify_all()

    def _soon(self, number: int, generation: int) -> Replica | None:
        """A shard that this server will have in a generation that is not installed yet.  None: it has not."""
        with self._viewed:
            self._viewed.wait_for(lambda: self._over.is_set() or self._generation >= generation)
        return self.replicas.get(number)

    def _values(self, words: Sequence[int], payload: Array) -> Array:
        """A change's values as floats."""
        number, with_codec = words[0] >> 32, codec(words[5] >> 32)
        table = self.layout.tables[number]
        if with_codec is None:
            return payload.view(table.dtype)
        if isinstance(table, Rows):
            return with_codec.decode(payload, words[7] * table.width)
        part = self.layout.parts[number][words[5] & 0xFFFFFFFF]
        return with_codec.decode(payload, part.end - part.first)

    def _tell(self, replica: Replica, said: Any, link: Link | None) -> None:
        out = replica.take(said, link)
        if out:
            self._send(replica, out, link)

    def _send(self, replica: Replica, out: Sequence[tuple[int, Any]], mine: Link | None) -> None:
        """To workers and the head.  `mine`: the link for which this is done, and which may be waited for."""
        for to, said in out:
            link = replica.head if to == HEAD else self._workers.get(to)
            if link is None:  # it is for the copy, or for a worker that is gone
                continue
            with contextlib.suppress(Error):  # who listens to it hears that it has ended
                frame = framed(replica.number, said)
                if link is mine:
                    self._incoming.send(link, frame)
                else:
                    link.post(frame)

    # --- what others see of it

    def _count(self) -> None:
        """Marks, where something has changed."""
        before: dict[str, int] = {}
        while True:
            over = self._over.wait(COUNT)
            shards = [each.shard for each in list(self.replicas.values()) if each.shard.head]
            now = {
                "server: changes": sum(each.order for each in shards),
                "server: pulls": sum(each.read for each in shards),
                "server: workers": len(self._workers),
                "server: shards": len(shards),
            }  # fmt: skip
            for name in now:
                if now[name] != before.get(name):
                    self.member.mark(name, now[name])
            before = now
            if over:
                return

    # --- snapshots

    def _keep(self, every: float) -> None:
        while not self._over.wait(every):
            began = time.monotonic()
            self.snapshot()
            log.info("%s: a snapshot took %.3f s", self.who, time.monotonic() - began)


def serve(
    comm: Any, tables: Mapping[str, Table], *, on: Sequence[int] | None = None, clock: str = "bsp", copies: int = 0,
    snapshot: str | None = None, every: float | None = None, works: bool = False, **how: Any,
) -> Server:  # fmt: skip
    """Hold shards of these tables on this rank.  The ranks of `on` call it; all others make a `Client`.

    - `comm`: only meets; traffic goes over pairs of `hocket.connect`, each a failure domain.  One of
      `hocket.init(elastic=True)` belongs to the servers from now on: they renew it when ranks are lost or come.
    - `tables`: `Range` and `Rows` by name, the same on all ranks.
    - `on`: the servers.  None: this is a newcomer, which takes the others' settings.
    - `clock`: "bsp", "ssp:s" or "async" (clocks.py).
    - `copies`: 0, or 1: what is acknowledged or read is on two servers.
    - `snapshot`: a folder that all servers see.  Every `every` seconds, and at the end, each server writes its shards;
      a shard that no server holds begins with the newest.
    - `works`: this rank makes a `Client(server)`, too.
    - the rest: as in `hocket.listen` (secret, iface, encrypt, transport); `iface` is that of `comm` if none is given.

    Returns at once; a thread for each link serves.  Raises ArgumentError, MismatchError (ranks differ), PeerLostError.
    """
    if on is not None and comm.rank not in on:
        raise ArgumentError(f"rank {comm.rank}: serve(on={list(on)}) is called by these ranks; make a Client")
    staleness(clock)
    if whole(copies, "copies") not in (0, 1):
        raise ArgumentError(f"copies={copies} must be 0 or 1")
    return Server(comm, tables, on, clock, copies, snapshot, every, works, **how)
