"""hocket's own threads, for the whole process: one leads and the others follow (lead.pyx), while none tells.

The leader drives what is queued.  When a call has ended that has a callback (a future of asyncio's or of torch's), it
goes to run that, and a follower leads meanwhile: a callback may take long, or wait for other calls.

Source: Schmidt et al., "Leader/Followers", PLoP 2000.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from hocket.collectives.waiting.lead import awaits, gone, lead, leave, stand_back, stay

if TYPE_CHECKING:
    from hocket.collectives.waiting.queued import Queued

log = logging.getLogger("hocket")
LOOK = 0.5
"""Seconds between two looks at a call that does not end."""
FREE = 2
"""Threads that are kept while calls are awaited: a leader, and one that leads while it looks whom to tell."""
LEAVING = 2.0
"""Seconds to wait for threads that are to end."""


class Awaited:
    """A run, and what is called when it has ended, well or not."""

    __slots__ = ("call", "run", "since")

    def __init__(self, run: Queued, call: Callable[[], object]) -> None:
        self.run, self.call, self.since = run, call, time.monotonic()

    def carry_out(self) -> None:
        """Call it.  What it raises is logged."""
        try:
            self.call()
        except Exception:
            log.exception("hocket: an error in a callback of %s", self.run.words)


class Pool:
    """One for the process: `pool`."""

    def __init__(self) -> None:
        self._awaited: list[Awaited] = []
        self._free = 0  # threads that do not tell just now
        self._rests = False
        self._looked = 0.0
        self._changed = threading.Condition()

    def begin(self) -> None:
        """A run is queued: have a leader."""
        with self._changed:
            self._have(1)

    def add(self, run: Queued, call: Callable[[], object]) -> Awaited:
        """Call it, once, when the run has ended."""
        added = Awaited(run, call)
        with self._changed:
            self._awaited.append(added)
            self._have(FREE)
            awaits(True)
        return added

    def remove(self, added: Iterable[Awaited]) -> None:
        """Forget what `add` returned, as far as it was not called yet."""
        unwanted = set(added)
        with self._changed:
            self._awaited = [each for each in self._awaited if each not in unwanted]
            awaits(bool(self._awaited))

    def take(self, runs: Iterable[Queued]) -> list[Awaited]:
        """Take over the calls for these runs that were not made yet: it is the caller's to call now."""
        ours = set(runs)
        with self._changed:
            taken = [each for each in self._awaited if each.run in ours]
            self._awaited = [each for each in self._awaited if each.run not in ours]
            awaits(bool(self._awaited))
        return taken

    def give(self, taken: Sequence[Awaited]) -> None:
        """Take back what `take` returned, and was not called."""
        if not taken:
            return
        with self._changed:
            self._awaited += taken
            self._have(FREE)
            awaits(bool(self._awaited))

    def rest(self) -> None:
        """No run is queued, nor can be: tell what is to be told, and end.  The next run starts threads again."""
        with self._changed:
            self._rests = True
            leave()
            if self._changed.wait_for(lambda: self._free == 0, LEAVING):
                gone()

    def _have(self, number: int) -> None:
        """Under the lock: have so many free threads, for as long as calls may be queued."""
        stay()
        self._rests = False
        self._more(number)

    def _more(self, number: int) -> None:
        """Under the lock: so many free threads, also while the pool comes to rest."""
        while self._free < number:
            self._free += 1
            threading.Thread(target=self._serve, name="hocket-pool", daemon=True).start()

    def _serve(self) -> None:
        stand_back()
        while True:
            lead()
            ended = self._ended()
            if ended is None:
                if self._ends():
                    return
                self._look()
                continue
            ended.carry_out()
            del ended  # or it, and its arrays, would live while this thread leads
            with self._changed:
                if self._free >= FREE:  # others have come meanwhile
                    return
                self._free += 1

    def _ends(self) -> bool:
        """Is this thread to end?"""
        with self._changed:
            if self._rests:
                self._free -= 1
                self._changed.notify_all()
            return self._rests

    def _ended(self) -> Awaited | None:
        """One whose run has ended, for this thread to call while another leads; None if all are under way."""
        with self._changed:
            for i, awaited in enumerate(self._awaited):
                if awaited.run.status:
                    del self._awaited[i]
                    self._free -= 1
                    self._more(1)
                    awaits(bool(self._awaited))  # others may have ended too
                    return awaited
        return None

    def _look(self) -> None:
        """Look after the waiting threads now and then: is a rank gone, or stuck in another call?"""
        now = time.monotonic()
        with self._changed:
            if now - self._looked < LOOK:
                return
            self._looked = now
            oldest = self._awaited[:1]
        for awaited in oldest:
            awaited.run.look(now - awaited.since)


pool = Pool()
os.register_at_fork(after_in_child=lambda: pool.__init__())  # type: ignore[misc]
