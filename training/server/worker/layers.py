"""A worker's arrays in the order of the forward pass: the first ones are pushed and pulled first.

As P3 does (Jayarajan et al., MLSys 2019): arrays are cut into slices, of those that wait the first layer's goes next,
and each is pulled behind its push, so that both ways of a link are in use.  What is on its way cannot be overtaken, so
little is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np

from hocket.training.server.optimizers import Array
from hocket.training.server.worker.client import Client, PartPush
from hocket.training.server.worker.handles import Handle
from hocket.training.server.worker.ways import Way

AHEAD = 8
"""Slices of a shard that are pushed and not acknowledged, and that are asked for and not answered, at most: an
acknowledgement waits behind the answers before it."""
LINGER = 0.2
"""Seconds after which the thread that sends ends, if nothing is to be sent; the next one begins when something is."""


class QueuedSlice(NamedTuple):
    """A slice to be pushed or pulled; of all that wait the least goes next."""

    place: int
    turn: int
    name: str
    way: Way
    start: Callable[..., None]


class Layers:
    """`rooms`: arrays for what is pulled, by the names of `Range`s, in the order in which a forward pass needs them.

    In each step, for each name: `ready(name, gradient)` pushes, slice by slice, and pulls each slice at the next clock;
    `fetch(name)` pulls alone.  `end()`, in the place of `client.tick()`, ends the worker's clock when all pushes have
    gone out.  `wait(name)` returns when the values are in their room, which it gives.  The others return at once, but
    in the next step `ready` and `fetch` wait until the clock has ended.  A gradient must not change before its `wait`.

    `first=False`: first come, first served.  A thread sends.  Each call raises what went wrong before: as `push` and
    `pull` do.  Cost: as these; of a shard at most 8 slices are pushed and not acknowledged, and 8 asked for.

    >>> import hocket, numpy as np
    >>> from hocket.training import SGD, Client, Layers, Range, serve
    >>> def train(comm):
    ...     tables = {name: Range(2, optimizer=SGD(1.0), mean=True) for name in ("first", "last")}
    ...     with serve(comm, tables, on=[0], works=True) as server, Client(server) as client:
    ...         layers = Layers(client, {name: np.empty(2, np.float32) for name in tables})
    ...         for _ in range(3):
    ...             for name in ("last", "first"):
    ...                 layers.ready(name, np.ones(2))
    ...             layers.end()
    ...             first = layers.wait("first")
    ...         return first.tolist()
    >>> hocket.local_world(1).run(train)
    [[-3.0, -3.0]]
    """

    def __init__(self, client: Client, rooms: Mapping[str, Array], *, first: bool = True) -> None:
        self._client, self._rooms, self._first = client, rooms, first
        self._places = {name: place for place, name in enumerate(rooms)}
        most = 0
        for name in rooms:
            table = client.range_of(name, "a layer must be")
            slices = (end - begin for begin, end in table.parts(len(client.ways)))
            most = max([most, *(count * np.dtype(table.dtype).itemsize for count in slices)])
        self._window = AHEAD * most
        self._changed = threading.Condition()
        self._pushes: list[QueuedSlice] = []
        self._pulls: list[QueuedSlice] = []
        self._left = dict.fromkeys(rooms, 0)
        """Slices that have not been asked for."""
        self._handles: dict[str, list[Handle]] = {name: [] for name in rooms}
        self._turn, self._ending, self._pushing = 0, False, False
        self._thread: threading.Thread | None = None
        self._why: BaseException | None = None
        client.gathering.add(self)

    def ready(self, name: str, values: Any) -> None:
        """Push these, and pull what comes of them."""
        self._steady()
        handle, parts = self._client.begin_push(name, values)
        self._given(name, handle, parts)

    def fetch(self, name: str) -> None:
        """Pull at the next clock, without a push."""
        self._steady()
        self._given(name, None, [])

    def end(self) -> None:
        """Nothing more comes in this step."""
        self._client.flush(but=self)
        with self._changed:
            self._fails()
            self._ending = True
            self._wake()

    def wait(self, name: str) -> Array:
        """The values that were asked for, in the room that was given for them."""
        with self._changed:
            self._changed.wait_for(lambda: not self._left[name] or self._why is not None)
            self._fails()
            handles, self._handles[name] = self._handles[name], []
        for handle in handles:
            handle.wait()
        return self._rooms[name]

    def flush(self) -> None:
        """Wait until all pushes have gone out: the client ends its clock by itself, or leaves."""
        if threading.current_thread() is not self._thread:
            with self._changed:
                self._changed.wait_for(lambda: not (self._due() or self._pushing) or self._why is not None)

    def _steady(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._ending or self._why is not None)
            self._fails()

    def _fails(self) -> None:
        if self._why is not None:
            raise self._why

    def _given(self, name: str, pushed: Handle | None, pushes: list[PartPush]) -> None:
        clock = self._client.clock + 1
        pulled, pulls = self._client.begin_pull(name, None, self._rooms[name], alone=True, clock=clock)
        with self._changed:
            self._handles[name] += [pulled] if pushed is None else [pushed, pulled]  # those of a step without a `wait`
            self._left[name] += len(pulls)
            for i, (way, pull) in enumerate(pulls):
                self._turn += 1
                waits = QueuedSlice(self._places[name] if self._first else 0, self._turn, name, way, pull)
                if pushes:
                    heappush(self._pushes, waits._replace(start=self._behind(pushes[i], waits)))
                else:
                    heappush(self._pulls, waits)
            self._wake()

    def _behind(self, push: PartPush, pull: QueuedSlice) -> Callable[[], None]:
        def start() -> None:
            self._client.start_push(*push, self._window)
            with self._changed:
                heappush(self._pulls, pull)

        return start

    def _wake(self) -> None:
        """Something is to be sent."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._send, name="hocket-layers", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _send(self) -> None:
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: self._pushes or self._pulls or self._ending, LINGER):
                    self._thread = None
                    return
                pull = bool(self._pulls) and (self._pulls[0].way.may_pull(AHEAD) or not self._due())
                one = heappop(self._pulls) if pull else heappop(self._pushes) if self._pushes else None
                self._pushing = not pull
            try:
                if one is not None:
                    one.start()
                else:
                    self._client.end_clock()
            except BaseException as why:
                with self._changed:
                    self._why, self._thread = why, None
                    self._changed.notify_all()
                return
            with self._changed:
                self._pushing = False
                if one is None:
                    self._ending = False
                elif pull:
                    self._left[one.name] -= 1
                if one is None or not (self._left[one.name] if pull else self._pushes):  # else nobody waits for it
                    self._changed.notify_all()

    def _due(self) -> bool:
        """Is there what no other worker has to be waited for?  Pulls may, so they leave it half of the room."""
        return bool(self._pushes) or self._ending
