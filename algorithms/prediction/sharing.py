"""Transfers that share ports: each gets its max-min fair rate (progressive filling), as TCP streams roughly do.

Bertsekas and Gallager, "Data Networks" (1992), section 6.5.2: all rates grow together until a port is full; the
transfers through it stay at that rate, the others grow on.  When transfers begin or end, only those that are tied
to them by ports in common get new rates.

Must not know: ranks, schedules, what a port is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Generic, TypeVar

LEVEL = 1 + 1e-9
"""Ports whose shares differ by less are full at the same time: rounding must not make levels of its own."""


class Transfer:
    """Bytes on their way through ports."""

    __slots__ = ("due", "left", "ports", "rate", "since")

    def __init__(self, ports: Sequence[Hashable], nbytes: float) -> None:
        self.ports, self.left = ports, nbytes
        self.rate = self.since = 0.0
        self.due = -1.0
        """When the last byte leaves, if nothing changes."""


T = TypeVar("T", bound=Transfer)


class Sharing(Generic[T]):
    """The transfers under way.  `visits` counts the rates computed: what the simulation costs."""

    def __init__(self, bandwidth: Callable[[Any], float]) -> None:
        self._bandwidth = bandwidth
        self._users: dict[Hashable, dict[T, None]] = {}
        self._room: dict[Hashable, float] = {}
        self.visits = 0

    def change(self, now: float, ended: Iterable[T], begun: Iterable[T]) -> list[T]:
        """Some transfers end, some begin.  Returns those whose `due` has changed."""
        touched: dict[Hashable, None] = {}
        for transfer in ended:
            for port in transfer.ports:
                del self._users[port][transfer]
                touched[port] = None
        for transfer in begun:
            transfer.since = now
            for port in transfer.ports:
                if port not in self._users:
                    self._users[port], self._room[port] = {}, self._bandwidth(port)
                self._users[port][transfer] = None
                touched[port] = None
        changed: list[T] = []
        seen: set[Hashable] = set()
        for port in touched:
            if port not in seen and self._users[port]:
                self._fill(now, self._tied(port, seen), changed)
        return changed

    def _tied(self, port: Hashable, seen: set[Hashable]) -> list[Hashable]:
        """All ports that this one's transfers depend on."""
        seen.add(port)
        tied = [port]
        for reached in tied:
            for transfer in self._users[reached]:
                for other in transfer.ports:
                    if other not in seen:
                        seen.add(other)
                        tied.append(other)
        return tied

    def _fill(self, now: float, ports: list[Hashable], changed: list[T]) -> None:
        room = {port: self._room[port] for port in ports}
        waiting = {port: len(self._users[port]) for port in ports}
        rated: set[T] = set()
        while ports:
            share = min(room[port] / waiting[port] for port in ports)
            for port in [port for port in ports if room[port] <= share * LEVEL * waiting[port]]:
                for transfer in self._users[port]:
                    if transfer not in rated:
                        rated.add(transfer)
                        for other in transfer.ports:
                            room[other] -= share
                            waiting[other] -= 1
                        if self._rate(now, transfer, share):
                            changed.append(transfer)
            ports = [port for port in ports if waiting[port]]
        self.visits += len(rated)

    @staticmethod
    def _rate(now: float, transfer: Transfer, rate: float) -> bool:
        if transfer.rate and abs(rate - transfer.rate) <= (LEVEL - 1) * rate:
            return False
        transfer.left = max(0.0, transfer.left - transfer.rate * (now - transfer.since))
        transfer.since, transfer.rate = now, rate
        transfer.due = now + transfer.left / rate
        return True
