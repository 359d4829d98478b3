"""`publish`: the ranks of a job offer their arrays to readers of other jobs, version by version.

Each rank listens, and serves each reader in a thread of its own, from a copy: training goes on.  A new version is there
when all ranks have it; the one before stays until the next, so that who began with it ends with it.
"""

from __future__ import annotations

import atexit
import os
import secrets
import threading
from typing import TYPE_CHECKING, Any

from hocket.collectives.elastic import pairs
from hocket.collectives.job.place import meeting_path
from hocket.collectives.layouts.given import Given
from hocket.collectives.layouts.moving import Kinds
from hocket.collectives.layouts.redistribute import agreed
from hocket.collectives.publishing.serving import Offer, Serving
from hocket.collectives.publishing.versions import Versions
from hocket.collectives.publishing.words import here, leave
from hocket.errors import ArgumentError, Error

if TYPE_CHECKING:
    from hocket.collectives.communicator.communicator import Communicator

READERS = 256
"""Readers that a rank serves at once; one more is turned away."""


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
        rows = comm.share([self._pairs.address, here()], "publish")
        self.addresses: list[str] = [address for address, _ in rows]
        """Where each rank listens."""
        self._offer = Offer(comm.rank, given, self._kinds, rows, self._versions,
                            lambda: (self.version, sorted(comm.world.gone.lost)))  # fmt: skip
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
                leave(pair, "a reader too many")

    def _serve(self, pair: Communicator) -> None:
        try:
            Serving(self._offer, pair).run()
        finally:
            self._room.release()


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
