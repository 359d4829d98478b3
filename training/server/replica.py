"""A shard that this process holds: its machine (shard.py) under a lock, and the links to its other replica."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

from hocket.errors import Error
from hocket.training.server.optimizers import Array
from hocket.training.server.shards.clocks import Clocks
from hocket.training.server.shards.dealing import Lazy
from hocket.training.server.shards.shard import COPY, Shard
from hocket.training.server.shards.snapshots import Book, Folder
from hocket.training.server.shards.store import Tables
from hocket.training.server.tables import Places
from hocket.training.server.views import HEAD, PART, WHOLE
from hocket.training.server.wire.frames import framed
from hocket.training.server.wire.link import ServerLink
from hocket.training.server.wire.messages import (
    Applied,
    At,
    Begin,
    Filled,
    Forward,
    Got,
    Hello,
    Item,
    Linked,
    Pull,
    Push,
    Role,
    Saved,
)  # fmt: skip

OF_A_WORKER, OF_THE_HEAD, OF_THE_COPY = (Hello, Push, Pull), (Begin, Item, Filled, Forward), (At, Got, Applied)
"""Messages that only a worker of the view, only the shard's head, and only its copy may send."""
Out = list[tuple[int, Any]]


class Replica:
    """`whole`: it holds the shard, from the beginning or from a snapshot."""

    def __init__(self, layout: Places, number: int, bound: float, whole: bool, cold: str | None = None) -> None:
        self.layout, self.number, self.lock = layout, number, threading.Lock()
        self._saving = threading.Lock()
        self.tables = Tables(layout, number, cold)
        self.shard = Shard(self.tables, Clocks(bound), whole)
        self.copy: ServerLink | None = None
        """To the copy, if this is the head."""
        self.head: ServerLink | None = None
        self._workers: frozenset[int] = frozenset()
        self._head_uid = -1
        """The view's."""

    @property
    def has(self) -> str:
        return HEAD if self.shard.head else WHOLE if self.shard.whole else PART

    def now(self, generation: int) -> bool:
        """Is this its generation?"""
        return self.shard.generation == generation

    def is_head(self, uid: int) -> bool:
        """Is this process the shard's head, by the view?"""
        return uid == self._head_uid

    def take(self, said: Any, link: ServerLink | None) -> Out:
        """Messages to send; one for the copy was sent.  `link`: on which it came, from another process.

        Raises ValueError: who is at its other end has not to say that.
        """
        with self.lock:
            if link is not None and self.now(said.generation) and not self._hears(said, link):
                return []
            return self._posted(self.shard.take(said))

    def _hears(self, said: Any, link: ServerLink) -> bool:
        """False: what was on its way on a link that has ended comes again."""
        kind = type(said)
        if kind in OF_A_WORKER:
            right = said.worker == link.uid and link.uid in self._workers
        elif kind in OF_THE_HEAD:
            right = link.uid == self._head_uid and not link.made
            if right and kind is Begin:
                self.head = link
            elif right and link is not self.head:
                return False
        else:
            right = kind in OF_THE_COPY and link.made
            if right and link is not self.copy:
                return False
        if not right:
            raise ValueError(f"{kind.__name__} of shard {self.number} is not for process {link.uid} to say")
        return True

    def take_role(self, role: Role, copy: ServerLink | None, head_uid: int) -> Out:
        """Likewise: a new view, with a link to the copy that it names."""
        with self.lock:
            self.copy, self._workers, self._head_uid = copy, role.workers, head_uid
            return self._posted(self.shard.take(role))

    def reached(self, copy: ServerLink, generation: int) -> None:
        """There is a link to the copy of that generation again."""
        with self.lock:
            if self.now(generation):
                self.copy = copy
                self._posted(self.shard.take(Linked(generation)))

    def _posted(self, out: Out) -> Out:
        """`out`, whose messages to the copy are on their way: under the lock, as the copy has to hear all in order."""
        if self.copy is not None:
            for to, said in out:
                if to == COPY:
                    with contextlib.suppress(Error):  # who listens to it hears that it has ended
                        self.copy.post(framed(self.number, said))
        return out

    # --- snapshots

    def restore(self, folder: Folder) -> None:
        """Begin with the newest snapshot, if there is one."""
        snapshot = folder.newest(self.layout, self.number)
        if snapshot is not None:
            book, state = snapshot
            for item, arrays in state.items():
                self.tables.load(item, arrays)
            shard = self.shard
            shard.order = shard.safe = book.order
            shard.applied, shard.kept, shard.clocks.at = dict(book.applied), dict(book.applied), dict(book.clocks)

    def save(self, folder: Folder) -> int:
        """Write one.  How many changes it has."""
        with self._saving:
            return self._save(folder)

    def _save(self, folder: Folder) -> int:
        with self.lock:
            shard = self.shard
            saved = Lazy({item: self._locked(call) for item, call in self.tables.save().items()})
            kept = Book(shard.order, dict(shard.applied), dict(shard.clocks.at))
        try:
            folder.write(self.layout, self.number, kept, saved)
        finally:
            with self.lock:
                self.tables.end_save()
        with self.lock:
            self.shard.take(Saved(kept.applied))
        return kept.order

    def _locked(self, call: Callable[[], Mapping[str, Array]]) -> Callable[[], Mapping[str, Array]]:
        def read() -> Mapping[str, Array]:
            with self.lock:
                return call()

        return read
