"""Submissions by name and rank: rank 0's table.  It moves no bytes and waits for nobody, so it can be tried by hand."""

from __future__ import annotations

import time
from collections.abc import Iterable

from hocket.training.agreeing import disagreement
from hocket.training.agreeing.fusion import fused
from hocket.training.agreeing.order import BYE, FAIL, JOINED, RUN, Order
from hocket.training.agreeing.request import Request


class Agreement:
    """The requests of `size` ranks, until all have submitted them."""

    def __init__(self, size: int, threshold: int) -> None:
        self.size, self.threshold = size, threshold
        self.waiting: dict[str, dict[int, Request]] = {}
        """By name and rank, in the order in which they came."""
        self.since: dict[str, float] = {}
        self.joined: list[int] = []
        """Ranks in join(), in the order in which they came."""
        self.left: list[int] = []
        """Ranks that have stopped."""
        self.taken: dict[str, dict[int, Request]] = {}
        """The requests of each rank for the names that `decide` decided on last: what each rank asked for."""
        self._ready: list[str] = []
        self._over = False

    def submit(self, rank: int, request: Request) -> None:
        """`rank` has this tensor."""
        name = request.name
        had = self.waiting.get(name)
        if had is None:
            had = self.waiting[name] = {}
            self.since[name] = time.monotonic()
        had[rank] = request
        if len(had) == self.size or (self.joined and self._complete(had)):
            self._ready.append(name)

    def join(self, rank: int) -> None:
        """`rank` has no more tensors, until all ranks have joined."""
        self.joined.append(rank)
        self._look_again()

    def leave(self, rank: int) -> None:
        """`rank` shuts down."""
        self.left.append(rank)

    def missing(self, name: str) -> list[int]:
        """The ranks that have not submitted it."""
        return [r for r in range(self.size) if r not in self.waiting[name] and r not in self.joined]

    def decide(self) -> list[Order]:
        """Orders that can be carried out by now, or never."""
        if not (self._ready or self.left or len(self.joined) == self.size):
            return []
        orders, ready = [], []
        self.taken.clear()
        for name in self._ready:
            requests = self._taken(name)
            wrong = disagreement.found(requests, len(requests) < self.size)
            if wrong is not None:
                orders.append(self._failed([name], wrong, "mismatch", requests))
            else:
                ready.append(requests)
        self._ready.clear()
        for group in fused([requests[min(requests)] for requests in ready], self.threshold):
            orders.append(self._run(group))
        if self.joined and len(self.joined) == self.size:
            orders.append(Order(JOINED, counts=(self.joined[-1],)))
            self.joined.clear()
        if self.left:
            gone = ", ".join(map(str, self.left))
            short = [name for name in self.waiting if not set(self.missing(name)).isdisjoint(self.left)]
            orders += [
                self._failed([name], f"{name!r} cannot be carried out: rank {gone} has shut down", "left")
                for name in short
            ]
        if len(self.left) == self.size and not self._over:
            self._over = True
            orders.append(Order(BYE))
        return orders

    def give_up(self, names: Iterable[str], why: str) -> list[Order]:
        """These have waited too long."""
        return [self._failed([name], f"{name!r}: {why}", "stall") for name in names if name in self.waiting]

    # --- its parts

    def _complete(self, had: dict[int, Request]) -> bool:
        return len(had.keys() | set(self.joined)) == self.size

    def _look_again(self) -> None:
        self._ready += [name for name, had in self.waiting.items() if name not in self._ready and self._complete(had)]

    def _taken(self, name: str) -> dict[int, Request]:
        self.since.pop(name, None)
        requests = self.taken[name] = self.waiting.pop(name)
        return requests

    def _run(self, group: list[Request]) -> Order:
        model = group[0]
        requests = self.taken[model.name]
        like = tuple(group) if any(len(self.taken[request.name]) < self.size for request in group) else ()
        counts: tuple[object, ...] = ()
        if model.kind == "allgather":
            ranks = range(self.size)
            counts = tuple([requests[r].parts[i].shape[0] for r in ranks] for i in range(len(model.parts)))
        elif model.kind == "alltoall":
            counts = tuple(requests[r].splits for r in range(self.size))
        return Order(RUN, tuple(request.name for request in group), counts, like)

    def _failed(
        self, names: list[str], why: str, kind: str, requests: dict[int, Request] | None = None
    ) -> Order:
        for name in names:
            requests = self._taken(name) if requests is None else requests
        calls = tuple(disagreement.calls(requests or {}).items())
        return Order(FAIL, tuple(names), error=why, kind=kind, calls=calls)
