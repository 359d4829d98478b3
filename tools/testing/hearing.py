"""Hears the ranks of a pool on one call, until all have ended, or it has lasted too long."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from hocket.tools.doctor.units import ranks
from hocket.tools.testing.account import account
from hocket.tools.testing.rank import Raised

GRACE = 0.3
"""Seconds that the other ranks have, once one has failed, to fail as well; then its failure ends their calls."""
FAREWELL = 10.0
"""Seconds that they have after that, or after a rank has died, to say what it is to them."""
ANSWER = 1.0
"""Seconds for ranks to say where they are."""


@dataclass
class Outcome:
    """The outcome of a call, by rank."""

    done: dict[int, Any] = field(default_factory=dict)
    raised: dict[int, Raised] = field(default_factory=dict)
    died: dict[int, str] = field(default_factory=dict)
    """Ends of ranks, in words: "was killed by SIGSEGV"."""
    account: str = ""
    """The account of who waited where, if some did not end."""
    disturbed: bool = False
    """Did the failure of some end the calls of others?"""

    def text(self) -> str:
        """Why the call failed, the causes first; "" if it did not."""
        parts = [f"rank {r} {how}" for r, how in self.died.items()]
        kind = min((each.kind for each in self.raised.values() if each.kind < 2 or not self.died), default=0)
        parts += [f"rank {r}:\n{each.text}" for r, each in sorted(self.raised.items()) if each.kind == kind]
        return "\n".join([*parts, self.account] if self.account else parts)


class Heard(Protocol):
    """The part of a pool that is used here."""

    ends: list[Connection]
    watched: list[int]
    """Descriptors of the processes."""
    pids: list[int]

    def end_of(self, r: int) -> str: ...


class Hearing:
    """One call, which the ranks have begun."""

    def __init__(self, pool: Heard, timeout: float) -> None:
        self.pool = pool
        self.outcome = Outcome()
        self._open = set(range(len(pool.ends)))
        self._failing = set[int]()
        self._abort_at: float | None = None
        self._deadline, self._why = time.monotonic() + timeout, f"after {timeout:g} s"

    def hear(self) -> Outcome:
        pool = self.pool
        while self._open:
            now = time.monotonic()
            if self._abort_at is not None and now >= self._abort_at:
                self._end_calls(now)
            if now >= self._deadline:
                self.outcome.account = self._account()
                break
            sources = [each for r in self._open for each in (pool.ends[r], pool.watched[r])]
            ready = wait(sources, min(self._deadline, self._abort_at or self._deadline) - now)
            for r in sorted(self._open):
                if pool.ends[r] in ready or pool.watched[r] in ready:
                    self._take(r, now)
        return self.outcome

    def _take(self, r: int, now: float) -> None:
        what, *said = received(self.pool.ends[r])
        if what == "failing":
            self._failing.add(r)
            self._abort_at = self._abort_at or now + GRACE
        elif what in ("done", "raised"):
            (self.outcome.done if what == "done" else self.outcome.raised)[r] = said[0]
            self._open.discard(r)
        elif what == "gone":
            self.outcome.died[r] = self.pool.end_of(r)
            self._open.discard(r)
            self._hurry(now, f"{ranks(self.outcome.died)} ended")

    def _end_calls(self, now: float) -> None:
        """Others seem to wait for those that failed."""
        self._abort_at, self.outcome.disturbed = None, True
        self._hurry(now, f"{ranks(self._failing)} failed")
        for r in self._failing - set(self.outcome.died):
            with contextlib.suppress(OSError):
                self.pool.ends[r].send(("abort",))

    def _hurry(self, now: float, what: str) -> None:
        if now + FAREWELL < self._deadline:
            self._deadline, self._why = now + FAREWELL, f"{FAREWELL:g} s after {what}"

    def _account(self) -> str:
        sites: dict[int, str] = {}
        for r in self._open:
            with contextlib.suppress(OSError):
                self.pool.ends[r].send(("where",))
        asked = {self.pool.ends[r]: r for r in self._open}
        until = time.monotonic() + ANSWER
        while asked and (ready := wait(list(asked), until - time.monotonic())):
            for end in ready:
                assert isinstance(end, Connection)
                what, *said = received(end)
                if what == "where":
                    sites[asked[end]] = said[0]
                if what in ("where", "gone"):
                    del asked[end]
        return account(self.pool.pids, sorted(self._open), self._why, sites)


def received(end: Connection) -> tuple[Any, ...]:
    """A rank's next answer, which is there; ("gone",) if it has ended."""
    try:
        answer: tuple[Any, ...] = end.recv() if end.poll() else ("gone",)
    except (EOFError, OSError):
        return ("gone",)
    return answer
