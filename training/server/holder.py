"""The process of a server holds this: replicas of shards, as each view says, and links.

What workers and heads say (incoming.py) is given to the shard's machine (shard.py), and what that returns is sent.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import hocket
from hocket.errors import Error
from hocket.training.server.incoming import Incoming
from hocket.training.server.member import ViewMember
from hocket.training.server.optimizers import Array
from hocket.training.server.replica import Replica
from hocket.training.server.shards.clocks import staleness
from hocket.training.server.shards.packing import ALL, unpacked
from hocket.training.server.shards.shard import HEAD
from hocket.training.server.shards.snapshots import Folder
from hocket.training.server.tables import Places, Rows, Table
from hocket.training.server.views import MemberInfo, View
from hocket.training.server.wire import frames, reaching
from hocket.training.server.wire.frames import (
    BYE,
    FILLED,
    FORWARD,
    ITEM,
    NAMED,
    PULL,
    PUSH,
    Frame,
    codec,
    framed,
    key_count,
    message,
)  # fmt: skip
from hocket.training.server.wire.link import ServerLink
from hocket.training.server.wire.messages import Gone, Hello, Named, Role, Unlinked, drawn, number_of

log = logging.getLogger("hocket")
SOON = 30.0
"""Seconds that a link waits for the view of which its other end speaks."""
STRANGE, SEVERAL = 256, 8
"""Links at once, at most: of processes that are in no view, and of each one that is; the oldest gives way."""
BOOKS = 64 << 20
"""Bytes of workers' numbers and clocks that a copy is told, at most."""
OF_A_SERVER = (ITEM, FILLED, FORWARD)
"""Kinds that only servers send, and whose lengths only they are believed."""
LAST, LOOK = 1.0, 0.001
"""Seconds that links have, at the end, for what was posted; and between two looks at them."""


class Holder:
    """`view`: who holds what now.  `works`: its rank is a worker, too, until its client ends.  `snapshot`: a folder."""

    def __init__(
        self, comm: Any, tables: Mapping[str, Table], on: Sequence[int] | None, clock: str, copies: int,
        snapshot: str | None, works: bool, cold: str | None = None, **how: Any,
    ) -> None:  # fmt: skip
        self.named, self.works = drawn(), works
        self.uid = self.named.uid
        self.who = f"rank {comm.rank}: serve"
        self.tables, self._clock, self.copies = tables, clock, copies
        self._shards = 0 if on is None else len(on)
        self.layout = Places(tables, self._shards or 1)
        self.folder = None if snapshot is None else Folder(snapshot)
        self._cold = cold
        self._most: dict[tuple[int, int, int], float] = {}
        """Bytes of the longest frames, worked out of the layout (`_longest`)."""
        self.replicas: dict[int, Replica] = {}
        self.workers: dict[int, ServerLink] = {}
        self._left: set[int] = set()
        """Workers whose link has ended."""
        self._links: dict[int, ServerLink] = {}
        self._unreached: set[tuple[int, int]] = set()
        """To other servers, by uid."""
        self._guests: dict[int, dict[ServerLink, None]] = {}
        """Links that others have made, by uid (0: it is in no view), the oldest first; under `_counting`."""
        self._counting = threading.Lock()
        self.view: View | None = None
        self._generation = -1
        self.installed: list[Callable[[View | None], None]] = []
        """Called with each view: a client of this rank."""
        self._viewed = threading.Condition()
        self.over = threading.Event()
        self._how = {"like": comm, "iface": comm.address, **how}
        self._pairs = hocket.listen(**self._how)
        self._incoming = Incoming(self._pairs, self)
        try:
            self.member = ViewMember(comm, self._says, self._install, self.who)
        except BaseException:
            self._incoming.close()
            raise

    def wait(self, limit: float | None) -> bool:
        """Until no worker is left, or it is closed.  False: the time was over before."""
        with self._viewed:
            return self._viewed.wait_for(self._is_over, limit)

    def _is_over(self) -> bool:
        return self.over.is_set() or self.view is not None and not self.view.workers - self._left

    def close(self) -> None:
        """`over` is set.  Leave the others, and the links."""
        self._incoming.close()
        self.member.close()
        links = [*self._links.values(), *self.workers.values()]
        for link in links:
            with contextlib.suppress(Error):
                link.post(Frame([BYE] * frames.WORDS))
        until = time.monotonic() + LAST
        while any(link.ahead for link in links) and time.monotonic() < until:
            time.sleep(LOOK)
        with self._viewed:
            self._viewed.notify_all()

    # --- views

    def _says(self) -> MemberInfo:
        has = {str(number): replica.has for number, replica in self.replicas.items()}
        return MemberInfo(self.uid, self.works, self._pairs.address, has, self._shards, self.layout.said(),
                    [self._clock, self.copies], self.view is not None)  # fmt: skip

    def _install(self, view: View | None) -> None:
        if view is not None:
            self._shards, (self._clock, self.copies) = view.shards, view.settings
            if self.layout.shards != view.shards:
                self.layout, self._most = Places(self.tables, view.shards), {}
            for number in range(view.shards):
                self._take_role(view, number)
        with self._viewed:
            if view is None:
                self.over.set()
            else:
                self.view, self._generation = view, view.generation
                self._recount(view)
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
            replica = Replica(self.layout, number, staleness(self._clock), head == self.uid, self._cold)
            if head == self.uid and self.folder is not None:
                replica.restore(self.folder)
            self.replicas[number] = replica
        link = self._to(view, copy) if head == self.uid and copy is not None else None
        role = Role(view.generation, head == self.uid, copy is not None, view.workers)
        self._send(replica, replica.take_role(role, link, view.heads[number]))
        with self._viewed:
            self._viewed.notify_all()
        if link is None and head == self.uid and copy is not None:
            self._link_again(replica, view)

    def _link_again(self, replica: Replica, view: View) -> None:
        """The copy lives as far as this view knows, and has no link: try until there is one, or another view."""

        uid = view.copies[replica.number]

        def linked() -> bool:
            if replica.shard.generation != view.generation:
                return True
            link = self._to(view, uid) if uid is not None else None
            if link is not None:
                replica.reached(link, view.generation)
            return link is not None

        reaching.again(linked, self.over.wait)

    def _to(self, view: View, uid: int) -> ServerLink | None:
        """The link to another server, made if there is none.  None: it cannot be reached now."""
        link = self._links.get(uid)
        if link is None or not link.open:
            try:
                link = reaching.reached(partial(ServerLink, to_server=True), view, uid, self.named, self._how)
            except Error as error:
                again = (uid, view.generation) in self._unreached  # else it may have died, and the next view tells
                self._unreached.add((uid, view.generation))
                level = logging.WARNING if again else logging.INFO
                log.log(level, "%s: the server at %s cannot be reached: %s", self.who, view.addresses[uid], error)
                return None
            link.uid = uid
            self._links[uid] = link
            self._incoming.add(link)
        return link

    # --- links (incoming.py)

    def came(self, link: ServerLink) -> None:
        self._count(link, 0)

    def _count(self, link: ServerLink, uid: int) -> None:
        """A link of this process, or (0) of one that is in no view."""
        with self._counting:
            if not link.open:
                return
            for guests in self._guests.values():
                guests.pop(link, None)
            guests = self._guests.setdefault(uid, {})
            guests[link] = None
            oldest = next(iter(guests)) if len(guests) > (SEVERAL if uid else STRANGE) else None
            if oldest is not None:
                del guests[oldest]
        if oldest is not None:
            oldest.comm.abort(ValueError(f"process {oldest.uid} has too many links to a server"))

    def _recount(self, view: View) -> None:
        """Members that have come before their view did are known now."""
        with self._counting:
            known = [link for link in self._guests.get(0, ()) if link.uid in view.workers or link.uid in view.addresses]
        for link in known:
            assert link.uid is not None
            self._count(link, link.uid)

    def knows(self, words: Sequence[int]) -> bool:
        """Is the frame's shard here, in its generation?  Else it may come with the next view."""
        replica = self.replicas.get(words[0] >> 8 & 0xFFFFFF)
        return replica is not None and words[1] <= replica.shard.generation

    def keeps(self, link: ServerLink, words: Sequence[int]) -> bool:
        """A push is over once it is applied, if its table does not keep it, it goes to no copy, and is of this view."""
        kind, nbytes, number = words[0] & 0xFF, words[6], words[0] >> 32
        keys = key_count(words) if words[7] else 0
        if nbytes or keys:
            most = self._most.get((kind, number, words[5])) if not keys else None
            if most is None:
                most = self._longest(kind, number, words[5], keys)
            if link.uid is None or not 0 <= nbytes <= most or kind in OF_A_SERVER and not self._serves(link.uid, words):
                raise ValueError(f"a frame of kind {kind} from process {link.uid} has {nbytes} bytes; most is {most}")
        replica = self.replicas.get(words[0] >> 8 & 0xFFFFFF)
        if kind != PUSH or replica is None or not replica.now(words[1]) or replica.shard.state != "alone":
            return True
        return number < len(self.layout.tables) and self.layout.overwrites(number)

    def _serves(self, uid: int, words: Sequence[int]) -> bool:
        """Does this process hold tables, too, or is it the head of the frame's shard?"""
        replica, view = self.replicas.get(words[0] >> 8 & 0xFFFFFF), self.view
        return replica is not None and replica.is_head(uid) or view is not None and uid in view.addresses

    def _longest(self, kind: int, table: int, fifth: int, keys: int) -> float:
        """Bytes that may follow such a header.  Raises ValueError and LookupError: there is no such header."""
        if kind == ITEM:
            return self.layout.longest_item(table)
        if kind == FILLED:
            return BOOKS
        if kind not in (PUSH, FORWARD, PULL):
            return 0
        if fifth >> 32 == ALL and not isinstance(self.layout.tables[table], Rows):
            most = self.layout.longest_item(table)
        else:
            most = self.layout.longest(table, fifth & 0xFFFFFFFF, keys, codec(fifth >> 32))
        most = 0 if kind == PULL else most
        if not keys:
            self._most[kind, table, fifth] = most
        return most

    def carry_out(self, link: ServerLink, frame: Frame) -> None:
        """The message.  Waits for the view that it is of, if that is not here.  Raises ValueError: it is a lie."""
        words, keys, payload = frame
        kind, number = words[0] & 0xFF, words[0] >> 8 & 0xFFFFFF
        if kind == NAMED:
            self._name(link, message(words, None, None))
            return
        if payload is not None and kind in (PUSH, FORWARD):
            payload = self._values(words, payload)  # type: ignore[assignment]
        replica = self.replicas.get(number)
        if replica is None or words[1] > replica.shard.generation:
            replica = self._soon(number, words[1])
        if replica is None:
            return
        if kind == PUSH and words[4]:
            link.shown(words[4])
        said = message(words, keys, payload)
        if type(said) is Hello and said.worker == link.uid:
            self.workers[said.worker] = link
            self._left.discard(said.worker)
        out = replica.take(said, link)
        if out:
            self._send(replica, out)

    def _name(self, link: ServerLink, named: Named) -> None:
        if link.made or link.uid not in (None, named.uid) or named.token < 0 or number_of(named.token) != named.uid:
            raise ValueError(f"a link says that it is of process {named.uid}, and does not prove it")
        link.uid = named.uid
        if self.view is not None and (named.uid in self.view.workers or named.uid in self.view.addresses):
            self._count(link, named.uid)

    def ended(self, link: ServerLink, error: Exception | None) -> None:
        """The link's end: its workers are gone, and copies are reached again."""
        if error is not None and not self.over.is_set():
            expected = isinstance(error, (Error, ValueError, LookupError))
            log.log(logging.INFO if expected else logging.ERROR, "%s: a link has ended: %r", self.who, error)
        link.close(None if isinstance(error, Error) else error)
        with self._counting:
            for uid, guests in list(self._guests.items()):
                guests.pop(link, None)
                if not guests:
                    del self._guests[uid]
        left = [who for who, its in list(self.workers.items()) if its is link]  # the others have a new link
        if self._never_greeted(link):
            left.append(link.uid)  # type: ignore[arg-type]
        for replica in list(self.replicas.values()):
            if replica.copy is link:
                self._tell(replica, Unlinked(replica.shard.generation))
                if self.view is not None and self.view.generation == replica.shard.generation:
                    self._link_again(replica, self.view)
        self._without(left)

    def look(self) -> None:
        """Workers that have died before they had a link, too, are waited for no longer."""
        if dead := [uid for uid in self.member.dead if uid not in self._left and uid not in self.workers]:
            self._without(dead)

    def _without(self, workers: Sequence[int]) -> None:
        """No clock waits for these workers any more."""
        for who in workers:
            self.workers.pop(who, None)
            self._left.add(who)
            for replica in list(self.replicas.values()):
                self._tell(replica, Gone(who))
        with self._viewed:
            self._viewed.notify_all()

    def _never_greeted(self, link: ServerLink) -> bool:
        """Has a worker that only works ended between two words, so that nobody waits for its clock?"""
        uid, view = link.uid, self.view
        return (
            not link.made and view is not None and uid in view.workers and uid not in view.addresses
            and uid not in self.workers and uid not in self._guests
        )  # fmt: skip

    def _soon(self, number: int, generation: int) -> Replica | None:
        """A shard that this server will have in a generation that is not installed yet.  None: it has not."""

        def here() -> bool:
            replica = self.replicas.get(number)
            return self._generation >= generation or replica is not None and replica.shard.generation >= generation

        with self._viewed:
            if not self._viewed.wait_for(lambda: self.over.is_set() or here(), SOON):
                raise ValueError(f"a link speaks of generation {generation}, which has not come in {SOON:g} s")
        return self.replicas.get(number)

    def _values(self, words: Sequence[int], payload: Array) -> Array | dict[str, Array]:
        """A change's values as floats, or all that there is of an item."""
        number, with_codec = words[0] >> 32, codec(words[5] >> 32)
        if words[5] >> 32 == ALL:
            return unpacked(payload)
        table = self.layout.tables[number]
        if with_codec is None:
            return payload.view(table.dtype)
        if isinstance(table, Rows):
            return with_codec.decode(payload, words[7] * table.width)
        part = self.layout.parts[number][words[5] & 0xFFFFFFFF]
        return with_codec.decode(payload, part.end - part.first)

    def _tell(self, replica: Replica, said: Any) -> None:
        """Messages of this process itself."""
        out = replica.take(said, None)
        if out:
            self._send(replica, out)

    def _send(self, replica: Replica, out: Sequence[tuple[int, Any]]) -> None:
        """To workers and the head.  Never waits."""
        for to, said in out:
            link = replica.head if to == HEAD else self.workers.get(to)
            if link is None:  # it is for the copy, or for a worker that is gone
                continue
            with contextlib.suppress(Error):  # who listens to it hears that it has ended
                link.post(framed(replica.number, said))
