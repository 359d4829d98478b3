"""`serve`: this process holds shards of the tables (holder.py)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from hocket.arguments import seconds, whole
from hocket.errors import ArgumentError
from hocket.training.server.holder import Holder
from hocket.training.server.shards.clocks import staleness
from hocket.training.server.tables import Range, Table
from hocket.training.server.views import View

log = logging.getLogger("hocket")
COUNT = 1.0
"""Seconds between two looks at what has been counted."""


class Server:
    """The server that `serve` returns.

    `wait()` until the workers have left; a `with` block waits so at its end, if nothing was raised in it.
    """

    def __init__(self, holder: Holder, every: float | None) -> None:
        self.holder = holder
        """A `Client` of this process knows the tables and the members by this."""
        self._counter = threading.Thread(target=self._count, name="hocket-counts", daemon=True)
        self._counter.start()
        if holder.folder is not None and every is not None:
            threading.Thread(target=self._keep, args=(every,), name="hocket-snapshot", daemon=True).start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no worker is left, then close.  False: `timeout` seconds were over before."""
        if not self.holder.wait(None if timeout is None else seconds(timeout, "timeout")):
            return False
        self.close()
        return True

    @property
    def view(self) -> View | None:
        """The holders of the shards now."""
        return self.holder.view

    @property
    def whole(self) -> bool:
        """Does this server hold all of its shards, and, with copies=1, does the other replica of each?"""
        shards = [each.shard for each in list(self.holder.replicas.values())]
        return bool(shards) and all(each.both if self.holder.copies else each.whole for each in shards)

    def snapshot(self) -> None:
        """Write what this server is the head of, now."""
        holder = self.holder
        if holder.folder is None:
            raise ArgumentError(f"{holder.who}: snapshot() needs a folder: pass serve(..., snapshot=folder)")
        for replica in list(holder.replicas.values()):
            if replica.shard.head:
                holder.member.mark("server: snapshot", replica.save(holder.folder))

    def close(self) -> None:
        """Serve no more.  Where ranks may be lost, the others go on with the copies."""
        holder = self.holder
        if holder.over.is_set():
            return
        holder.over.set()
        self._counter.join()
        try:
            if holder.folder is not None:
                self.snapshot()
        finally:  # the others are told also where the disk is full
            holder.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:  # others may still wait for an acknowledgement
            self.wait()
        else:
            self.close()

    def _count(self) -> None:
        """Marks, where something has changed; and a look at who has died."""
        before: dict[str, int] = {}
        while True:
            over = self.holder.over.wait(COUNT)
            self.holder.look()
            shards = [each.shard for each in list(self.holder.replicas.values()) if each.shard.head]
            now = {
                "server: changes": sum(each.order for each in shards),
                "server: pulls": sum(each.read for each in shards),
                "server: workers": len(self.holder.workers),
                "server: shards": len(shards),
            }  # fmt: skip
            for name in now:
                if now[name] != before.get(name):
                    self.holder.member.mark(name, now[name])
            before = now
            if over:
                return

    def _keep(self, every: float) -> None:
        who = self.holder.who
        while not self.holder.over.wait(every):
            began = time.monotonic()
            try:
                self.snapshot()
            except Exception as why:  # a full disk; the next one may find room
                log.warning("%s: no snapshot was written, the next attempt is in %g s: %r", who, every, why)
            else:
                log.info("%s: a snapshot took %.3f s", who, time.monotonic() - began)


def serve(
    comm: Any, tables: Mapping[str, Table], *, on: Sequence[int] | None = None, clock: str = "bsp", copies: int = 0,
    snapshot: str | None = None, every: float | None = None, cold: str | None = None, works: bool = False, **how: Any,
) -> Server:  # fmt: skip
    """Hold shards of these tables on this rank.  The ranks of `on` call it; all others make a `Client`.

    - `comm`: only meets; traffic goes over pairs of `hocket.connect`, each a failure domain.  One of
      `hocket.init(elastic=True)` belongs to the servers from now on: they renew it when ranks are lost or come.
    - `tables`: `Range` and `Rows` by name, the same on all ranks.
    - `on`: the servers.  None: this is a newcomer, which takes the others' settings.
    - `clock`: "bsp", "ssp:s" or "async" (clocks.py).
    - `copies`: 0, or 1: what is acknowledged or read is on two servers.
    - `snapshot`: a folder that all servers see, of this user alone.  Every `every` seconds, and at the end, each server
      writes its shards; a shard that no server holds begins with the newest.  What cannot be written is logged, and
      tried again; at the end it is an error.
    - `cold`: a folder of this server for rows that exceed their table's `room`, in files without a name, which end with
      it; None: TMPDIR, or /var/tmp.
    - `works`: this rank makes a `Client(server)`, too: `with server, Client(server) as client:`.
    - the rest: as in `hocket.listen` (secret, iface, encrypt, transport); `iface` is that of `comm` if none is given.

    Returns at once; a thread for each link serves.  Raises ArgumentError, MismatchError (ranks differ), PeerLostError.
    """
    if on is not None and comm.rank not in on:
        raise ArgumentError(f"rank {comm.rank}: only these ranks call serve(on={list(on)}); make a Client here")
    bound = staleness(clock)
    pairs = tables.items() if isinstance(tables, Mapping) else ()  # the layout says what else is wrong
    mean = [name for name, table in pairs if isinstance(table, Range) and table.mean]
    if mean and bound:
        raise ArgumentError(f'table {mean[0]!r} has mean=True, a step a clock: say clock="bsp", not {clock!r}')
    if whole(copies, "copies") not in (0, 1):
        raise ArgumentError(f"copies={copies} must be 0 or 1")
    return Server(Holder(comm, tables, on, clock, copies, snapshot, works, cold, **how), every)
