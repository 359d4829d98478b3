"""Rank 0's part: it hears what all ranks have submitted, decides what is carried out next, and tells all ranks.

A message from a rank is a list: a number (the tensor that had this number, just as it was last time), a request in
full, "join" or "leave".  A message to the ranks is a list of orders.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from hocket import Communicator
from hocket.training.agreeing import lists
from hocket.training.agreeing.agreement import Agreement
from hocket.training.agreeing.numbers import Numbers
from hocket.training.agreeing.order import RUN, Order
from hocket.training.agreeing.request import Request, from_plain

JOIN, LEAVE = "join", "leave"


class Negotiator:
    """`up` carries messages to rank 0, `down` orders from it; both None where this is the only rank.

    `own`: takes the orders for rank 0 itself, and returns at once.  `heard`: called when rank 0 may have orders that
    none of its own calls brought: another rank was heard, or tensors have waited too long.  `failed`: told if other
    ranks cannot be heard any more.
    """

    def __init__(
        self, size: int, up: Communicator | None, down: Communicator | None, threshold: int,
        own: Callable[[list[Order]], None], heard: Callable[[], None], failed: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        self.agreement = Agreement(size, threshold)
        self._up, self._down, self._own, self._heard, self._failed = up, down, own, heard, failed
        self._others = list(range(1, size))
        self._numbers = Numbers()
        self._last: dict[str, dict[int, Request]] = {}
        """Each rank's request under a name that has a number, the last time it was carried out."""
        self._lock = threading.Lock()
        self.thread: threading.Thread | None = None
        if up is not None:
            self.thread = threading.Thread(target=self._hear, name="hocket.horovod negotiator", daemon=True)
            self.thread.start()

    def take(self, rank: int, items: list[Any]) -> None:
        """Take the submissions of `rank`."""
        with self._lock:
            for item in items:
                if isinstance(item, int):
                    self.agreement.submit(rank, self._last[self._numbers.names[item]][rank])
                elif item == JOIN:
                    self.agreement.join(rank)
                elif item == LEAVE:
                    self.agreement.leave(rank)
                else:
                    self.agreement.submit(rank, item if isinstance(item, Request) else from_plain(item))
            self._tell(self.agreement.decide())

    def give_up(self, names: list[str], why: str) -> None:
        """These tensors have waited too long."""
        with self._lock:
            self._tell(self.agreement.give_up(names, why))
        self._heard()  # rank 0 has this order too, and perhaps no other rank says anything

    def _tell(self, orders: list[Order]) -> None:
        """Send orders, in the same order to all ranks."""
        if not orders:
            return
        if self._down is not None:
            lists.send(self._down, [order.plain(self._refs(order)) for order in orders], self._others)
        self._own(orders)

    def _refs(self, order: Order) -> list[Any]:
        if order.what != RUN:
            return list(order.names)
        refs = [self._numbers.ref(name) for name in order.names]
        for name in order.names:
            if name in self._numbers.of:
                self._last.setdefault(name, {}).update(self.agreement.taken[name])
        return refs

    def _hear(self) -> None:
        """The thread: sleeps until a rank has something to say."""
        assert self._up is not None
        receiver, remaining = lists.ListReceiver(self._up), len(self._others)
        try:
            while remaining:
                rank, items = receiver.next(None)
                self.take(rank, items)
                self._heard()
                remaining -= items.count(LEAVE)
        except BaseException as error:
            self._failed(error)
