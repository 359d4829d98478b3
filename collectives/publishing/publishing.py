"""`publish`: the ranks of a job offer their arrays to readers of other jobs, version by version.

Each rank listens, and serves each reader in a thread of its own, from a copy: training goes on.  A new version is there
when all ranks have it; the one before stays until the next, so that who began with it ends with it.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import threading
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy

from hocket.collectives.elastic import pairs
from hocket.collectives.job.place import meeting_path
from hocket.collectives.layouts.boxes import count, meet
from hocket.collectives.layouts.deal import FETCH, Held, Move
from hocket.collectives.layouts.given import Given
from hocket.collectives.layouts.held import Words
from hocket.collectives.layouts.moving import MOST, Arrays, Kinds, Message, Way, drain
from hocket.collectives.layouts.redistribute import agreed
from hocket.collectives.publishing.words import ASKED, BYE, hear, heard_box, tell, told_layouts
from hocket.errors import ArgumentError, Error, TransportError

if TYPE_CHECKING:
    from hocket.collectives.communicator.communicator import Communicator

log = logging.getLogger("hocket")
READERS = 256
"""Readers that a rank serves at once; one more is turned away."""
KEPT = 2
"""Versions that a rank keeps: the newest one, and the one before."""
Version = list[list[Words]]
"""The words of a rank's arrays, by number, in the order of its boxes."""


class Versions:
    """The versions that a rank offers, and how many readers hold each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offered: dict[int, Version] = {}
        self._held: Counter[int] = Counter()
        self._spare: Version | None = None

    def add(self, number: int, given: Given) -> None:
        """Copy the arrays, into memory of a version that nobody holds any more if there is one."""
        with self._lock:
            old = self._offered.pop(number - KEPT, None)
            if old is not None and not self._held[number - KEPT]:
                self._spare = old
            copy, self._spare = self._spare, None
        if copy is None:
            copy = [[numpy.empty(each.words.shape, each.words.dtype) for each in some] for some in given.held]
        for into, some in zip(copy, given.held, strict=True):
            for words, array in zip(into, some, strict=True):
                words[...] = array.words
        with self._lock:
            self._offered[number] = copy

    def hold(self, number: int) -> Version | None:
        """This version, kept as it is until `release`; None if it is not offered any more."""
        with self._lock:
            found = self._offered.get(number)
            self._held[number] += found is not None
            return found

    def release(self, number: int) -> None:
        """A reader needs it no more."""
        with self._lock:
            self._held[number] -= 1


class Published:
    """The result of `hocket.publish`: `update` gives readers a new version, `address` is what `hocket.fetch` takes."""

    def __init__(self, comm: Communicator, tree: Any, layout: Any, how: dict[str, Any]) -> None:
        given, why = None, ""
        try:
            given = Given(comm, tree, layout, layout, None, None)
            self._pairs = pairs.listen(**how)
        except Error as error:
            why = str(error)
        try:
            dtypes, _ = agreed(comm, given, why, [], None, "publish")
        except BaseException:
            if not why:
                self._pairs.close()
            raise
        assert given is not None
        self._comm, self._layout, self._given = comm, layout, given
        self._kinds = [Kinds(dtype, dtype) for dtype in dtypes]
        self._versions, self._room = Versions(), threading.Semaphore(READERS)
        self.version = 0
        """The newest one: 0, then one more with each `update`."""
        self._versions.add(0, given)
        self.addresses: list[str] = comm.share(self._pairs.address, "publish")
        """Where each rank listens."""
        atexit.register(self.close)  # a Unix socket is a file
        threading.Thread(target=self._accept, daemon=True, name="hocket publish").start()

    @property
    def address(self) -> str:
        """Where readers ask first: the address of rank 0."""
        return self.addresses[0]

    def update(self, tree: Any) -> int:
        """Offer what the arrays hold now, as one more version.  Returns its number.  All ranks call it.

        `tree` is as in `publish`, with the same names, shapes and dtypes.  It is copied, so it may change at once.
        Readers get the version before until all ranks have called it.  Raises ArgumentError on all ranks.
        """
        given, why = None, ""
        try:
            given = Given(self._comm, tree, self._layout, self._layout, None, None)
            if given.names != self._given.names:
                why = "an update has the names of what was published, and this one has others"
        except Error as error:
            why = str(error)
        dtypes, _ = agreed(self._comm, given, why, [], None, "publish")
        if dtypes != [kind.have for kind in self._kinds]:
            raise ArgumentError("publish: an update has the dtypes of what was published, and this one has others")
        assert given is not None
        self._versions.add(self.version + 1, given)
        self._comm.barrier()  # all have it: from here on readers may begin with it
        self.version += 1
        return self.version

    def close(self) -> None:
        """Offer nothing any more; readers under way get an error.  Each rank calls it, or ends."""
        atexit.unregister(self.close)
        self._pairs.close()

    def __enter__(self) -> Published:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Published at {self.address}: version {self.version}>"

    # --- readers

    def _accept(self) -> None:
        while True:
            try:
                pair = self._pairs.accept()
            except ArgumentError:  # it was closed
                return
            if self._room.acquire(blocking=False):
                threading.Thread(target=self._serve, args=(pair,), daemon=True, name="hocket publish").start()
            else:
                pair.close(timeout=0.1, log_as="a reader too many")

    def _serve(self, pair: Communicator) -> None:
        """One reader, until it leaves.  Whatever goes wrong is its alone."""
        held: list[tuple[int, Version]] = []
        pair.set_timeout(float("inf"))
        try:
            while (asked := hear(pair, most=ASKED)) != BYE:
                self._answer(pair, asked, held)
        except Error as error:
            log.info("a reader of %s is gone: %s", self.address, error)
        except Exception:
            log.exception("a reader of %s asked for what it may not have", self.address)
        finally:
            for number, _ in held:
                self._versions.release(number)
            self._room.release()
            pair.close(timeout=0.1, log_as="a reader")

    def _answer(self, pair: Communicator, asked: Any, held: list[tuple[int, Version]]) -> None:
        what = asked.get("what") if isinstance(asked, dict) else None
        if what == "table":
            tell(pair, self._table())
        elif what == "hold":
            number = int(asked["version"])
            version = self._versions.hold(number)
            while held:
                self._versions.release(held.pop()[0])
            if version is not None:
                held.append((number, version))
            tell(pair, version is not None)
        elif what == "send" and held:
            arrays = Arrays(self._kinds, held[0][1], [], MOST)
            damaged: list[Any] | None = [] if asked.get("check") else None
            drain([Way(pair, 1, list(self._asked(asked["messages"])), False, arrays, None, damaged)])
        else:
            raise TransportError(f"a reader asks {str(asked)[:40]!r}")

    def _table(self) -> dict[str, Any]:
        return {
            "version": self.version, "names": self._given.names, "listed": self._given.listed,
            "dtypes": [kind.have.name for kind in self._kinds], "layouts": told_layouts(self._given.sources),
            "addresses": self.addresses, "lost": sorted(self._comm.world.gone.lost),
        }  # fmt: skip

    def _asked(self, messages: Any) -> Iterator[Message]:
        """The messages that a reader wants: parts of this rank's boxes."""
        for straight, parts in messages:
            moves = tuple(self._part(*part) for part in parts)
            nbytes = sum(count(move.box) * self._kinds[move.array].have.itemsize for move in moves)
            if len(moves) != 1 if straight else nbytes > MOST:
                raise TransportError(f"a reader asks for a message of {len(moves)} parts and {nbytes} bytes")
            yield Message(moves, nbytes, bool(straight))

    def _part(self, array: int, place: int, told: Any) -> Move:
        box, rank = heard_box(told), self._comm.rank
        boxes = self._given.sources[array].of(rank) if 0 <= array < len(self._given.names) else ()
        if not 0 <= place < len(boxes) or meet(box, boxes[place]) != box:
            raise TransportError("a reader asks for what is not here")
        held = Held(rank, place, boxes[place])
        return Move(array, FETCH, box, held, held)


def publish(
    comm: Communicator, tree: Any, layout: Any, *, address: str | None = None, secret: str | bytes | None = None,
    iface: str | None = None, encrypt: bool | None = None, transport: str | None = None,
) -> Published:  # fmt: skip
    """Offer arrays that the ranks of `comm` hold by `layout` to readers of other jobs (`hocket.fetch`).

    `tree` and `layout` are as `tree` and `source` of `redistribute`.  The arrays are copied; `update(tree)` offers a
    new version.  All ranks call it.  Readers come and go as they like: each is served by a thread of its own, and one
    that is late, stops or dies holds up nobody.

    `secret`: readers prove it, and may come from other hosts, to `address` ("tcp:host:port") or a port at `iface`.  It
    is not the job's own, which readers of another job do not have.  Without one readers are processes of this user on
    this host.  `encrypt`, `transport`: as in `hocket.listen`; a job that encrypts offers nothing plain.  Raises
    ArgumentError on all ranks.

    >>> import hocket, numpy as np
    >>> def offer(comm):
    ...     rows = hocket.Layout.cut((4,), 2)
    ...     with hocket.publish(comm, [np.full(2, comm.rank)], rows) as published:
    ...         got = hocket.fetch(published.address, hocket.Layout.replicated((4,), 1), rank=0)
    ...         comm.barrier()
    ...     return got[0].tolist()
    >>> hocket.local_world(2).run(offer)[0]
    [0, 0, 1, 1]
    """
    if secret is None and address is None:
        address = f"unix:{meeting_path(os.environ, secrets.token_hex(16))}"
    how = {"address": address, "secret": secret, "iface": iface, "encrypt": encrypt or comm.config.encrypt or None}
    return Published(comm, tree, layout, {**how, "transport": transport})
