"""The stall inspector: after a while rank 0 says which tensors wait for which ranks."""

from __future__ import annotations

import logging
import threading
import time

from hocket.horovod.negotiator import Negotiator
from hocket.horovod.settings import Settings

log = logging.getLogger("hocket")
MANY = 5
"""So many tensors of one set of ranks are named; of more it is said how many."""


class StallInspector:
    """Looks after the negotiators of this process, on a thread that sleeps nearly all the time."""

    def __init__(self, settings: Settings) -> None:
        self._check, self._shutdown = settings.stall_check, settings.stall_shutdown
        self._watched: dict[Negotiator, str] = {}
        self._warned: dict[tuple[Negotiator, str], float] = {}
        """By tensor: when it had been submitted first."""
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, negotiator: Negotiator, of: str) -> None:
        """Look after this one, too.  `of`: its ranks, for people."""
        self._watched[negotiator] = of
        limits = [seconds for seconds in (self._check, self._shutdown) if seconds]
        if self._thread is None and limits:
            step = min(limits) / 4
            self._thread = threading.Thread(
                target=self._look, args=(step,), name="hocket.horovod stall inspector", daemon=True)
            self._thread.start()

    def forget(self, negotiator: Negotiator) -> None:
        """It is no more."""
        self._watched.pop(negotiator, None)

    def stop(self) -> None:
        """End the thread."""
        self._over.set()

    def _look(self, step: float) -> None:
        while not self._over.wait(step):
            for negotiator, of in list(self._watched.items()):
                self.inspect(negotiator, of, time.monotonic())

    def inspect(self, negotiator: Negotiator, of: str, now: float) -> None:
        """Warn of what has waited too long; give up what has waited far too long."""
        agreement = negotiator.agreement
        ages = {name: now - began for name, began in list(agreement.since.items())}
        late = [name for name, age in ages.items() if self._check and age > self._check]
        still = [key for key, since in self._warned.items() if key[0].agreement.since.get(key[1]) == since]
        self._warned = {key: self._warned[key] for key in still}
        new = [name for name in late if (negotiator, name) not in self._warned]
        by_ranks: dict[tuple[int, ...], list[str]] = {}
        for name in new:
            since = agreement.since.get(name)
            if since is not None:
                self._warned[negotiator, name] = since
                by_ranks.setdefault(self._missing(negotiator, name), []).append(name)
        for ranks, names in by_ranks.items():
            log.warning(
                "some ranks %shave submitted tensors and wait for others, for more than %g s. "
                "Perhaps the ranks do different things, or one has gone astray.\n  rank%s %s submitted not: %s",
                of, self._check, "s"[: len(ranks) > 1], ", ".join(map(str, ranks)), listed(names))  # fmt: skip
        dead = [name for name, age in ages.items() if self._shutdown and age > self._shutdown]
        for name in dead:
            missing = ", ".join(map(str, self._missing(negotiator, name)))
            why = f"rank {missing} did not submit it within {self._shutdown:g} s (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)"
            negotiator.give_up([name], why)

    def _missing(self, negotiator: Negotiator, name: str) -> tuple[int, ...]:
        try:
            return tuple(negotiator.agreement.missing(name))
        except KeyError:  # it came a moment ago
            return ()


def listed(names: list[str]) -> str:
    """Some of the names, and how many there are."""
    more = f" and {len(names) - MANY} more" if len(names) > MANY else ""
    return ", ".join(names[:MANY]) + more
