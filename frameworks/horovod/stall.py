"""The stall inspector: after a while rank 0 says which tensors wait for which ranks, and where these are.

Where a rank is, is said as for calls that wait long: `comm.whereabouts`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from hocket import Communicator
from hocket.arguments import some_of
from hocket.horovod.settings import Settings
from hocket.training.agreeing import Negotiator

log = logging.getLogger("hocket")
MANY = 5
"""Most tensors, and ranks, that are named in one warning; the rest are counted."""


class StallInspector:
    """Looks after the negotiators of this process, on a thread that sleeps nearly all the time."""

    def __init__(self, settings: Settings) -> None:
        self._check, self._shutdown = settings.stall_check, settings.stall_shutdown
        self._watched: dict[Negotiator, tuple[str, Communicator]] = {}
        self._warned: dict[tuple[Negotiator, str], float] = {}
        """By tensor: when it had been submitted first."""
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, negotiator: Negotiator, of: str, comm: Communicator) -> None:
        """Look after this one, too.  `of`: its ranks, for people; `comm`: what they make their calls on."""
        self._watched[negotiator] = of, comm
        limits = [seconds for seconds in (self._check, self._shutdown) if seconds]
        if self._thread is None and limits:
            step = min(limits) / 4
            self._thread = threading.Thread(
                target=self._look, args=(step,), name="hocket.horovod stall inspector", daemon=True)
            self._thread.start()

    def forget(self, negotiator: Negotiator) -> None:
        """Watch this negotiator no longer: it is closed."""
        self._watched.pop(negotiator, None)

    def stop(self) -> None:
        """End the thread."""
        self._over.set()

    def _look(self, step: float) -> None:
        while not self._over.wait(step):
            for negotiator, (of, comm) in self._watched.copy().items():
                self.inspect(negotiator, of, comm, time.monotonic())

    def inspect(self, negotiator: Negotiator, of: str, comm: Communicator, now: float) -> None:
        """Warn of what has waited too long; give up what has waited far too long."""
        agreement = negotiator.agreement
        ages = {name: now - began for name, began in agreement.since.copy().items()}
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
            where = comm.whereabouts(some_of(names, MANY), max(ages[name] for name in names), ranks)
            log.warning(
                "some ranks %shave waited for others for more than %g s: check that all ranks run the same steps.\n"
                "  %s not submitted: %s%s", of, self._check, have(ranks), some_of(names, MANY), where)
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


def have(ranks: Sequence[int]) -> str:
    """The subject of a sentence: "ranks 1, 2 have"."""
    return f"ranks {', '.join(map(str, ranks))} have" if len(ranks) > 1 else f"rank {', '.join(map(str, ranks))} has"
