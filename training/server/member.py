"""A process's part in a job of servers and workers: it agrees on each generation's view, in a thread where ranks may
be lost.

An elastic communicator's next generation is that of the servers, too: after a loss, and when newcomers wait, every
member renews it, and says what it has; all make the same view of that.  Members that have a view wait for nobody for
longer than WAIT, and a newcomer that says something else is left out, and told (views.py).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from hocket.arguments import printable
from hocket.errors import ArgumentError, Error, MismatchError, PeerLostError, TimeoutError
from hocket.training.server.views import Says, View, decide, read, refused

log = logging.getLogger("hocket")
WAIT = 10.0
"""Seconds in which a member has to renew, and a newcomer to call `serve` or `Client`; then it is left out."""
SHOWN = 400
"""Characters of what is said of a newcomer."""
LEAVE = 0.1
"""Seconds that a member which leaves waits for the others to do so; they may go on."""


class Member:
    """`say`: what this process has, now.  `install`: called with each view, one after the other; None: it is out."""

    def __init__(self, comm: Any, say: Callable[[], Says], install: Callable[[View | None], None], who: str) -> None:
        self.comm, self._say, self._install, self.who = comm, say, install, who
        self.elastic = comm.door is not None
        self._changed, self._over = threading.Event(), False
        self._has_view, self._without = False, list[int]()
        """`_without`: ranks of `comm` that are to be left out."""
        self._thread: threading.Thread | None = None
        try:
            view = self._viewed()
            copies = view.settings[1]
            if copies and not self.elastic:
                raise ArgumentError(f"{who}: copies={copies} needs a communicator of hocket.init(elastic=True)")
        except MismatchError:
            if self.comm.generation:  # the others go on
                self.comm.close(timeout=LEAVE, log_as=self.who)
            raise
        self._installed(view)
        if self.elastic:
            self._watch()
            self._thread = threading.Thread(target=self._keep, name="hocket-view", daemon=True)
            self._thread.start()

    def mark(self, name: str, value: int) -> None:
        """Seen in `hocket top`, in metrics and in traces."""
        self.comm.mark(name, value)

    def span(self, name: str, begin: int, end: int) -> None:
        """Seen in a trace: from `begin` to `end`, ns of `time.monotonic_ns()`."""
        if self.comm.config.recorder:
            self.comm.recorder().span(name, begin, end, "server")

    def close(self) -> None:
        """Agree on nothing more.  An elastic communicator ends with it: the others go on without this member."""
        self._over = True
        self._changed.set()
        if self._thread is not None:
            self._thread.join()
            self.comm.close(timeout=LEAVE, log_as=self.who)

    def _installed(self, view: View) -> None:
        self.mark("server: generation", view.generation)
        self._install(view)
        self._has_view = True

    def _viewed(self) -> View:
        """Agree in the communicator's generation, or in a later one if somebody is lost meanwhile or does not come."""
        while True:
            patience = WAIT if self._has_view else None
            try:
                words = self.comm.share(list(self._say()), within="a parameter server", timeout=patience)
            except (PeerLostError, TimeoutError, MismatchError) as error:
                goes_on = self._has_view or self.comm.generation or isinstance(error, PeerLostError)
                if not self.elastic or not goes_on:
                    raise
                if self._has_view and isinstance(error, TimeoutError):
                    log.warning("%s: ranks %s do not serve, and have no client: left out", self.who, error.missing)
                    self._without = [*error.missing]
                self.comm = self._renewed()
                continue
            previous = self.comm.previous_ranks
            wrong = refused(words, previous)
            if self.comm.rank in wrong:
                raise MismatchError(f"{self.who}: {wrong[self.comm.rank]}", {})
            for rank, why in wrong.items():
                log.warning("%s: rank %d takes no part: %s", self.who, rank, printable(why, SHOWN))
            self._without = [*wrong]
            said = [  # who is new has had no view, and holds nothing
                each if each.viewed and previous[rank] is not None else each._replace(viewed=False, has={})
                for rank, each in enumerate(map(read, words)) if each is not None and rank not in wrong
            ]  # fmt: skip
            return decide(self.comm.generation, said, self.who)

    def _renewed(self) -> Any:
        began, without = time.monotonic(), set(self._without)
        while True:
            try:
                made = self.comm.renew(without=sorted(without - {self.comm.rank}), timeout=WAIT)
            except TimeoutError as error:
                if not error.missing and time.monotonic() - began > self.comm.timeout:
                    raise
                log.warning("%s: ranks %s have not come to a renewal in %g s: left out", self.who, error.missing, WAIT)
                without |= {*error.missing}
                continue
            self._without = []
            return made

    def _watch(self) -> None:
        """For what changes from now on; what came before has been seen in the new generation."""
        comm = self.comm
        if not self._over:
            self._changed.clear()
        comm.when_changed(self._changed.set)
        if comm.lost or comm.waiting:
            self._changed.set()

    def _keep(self) -> None:
        while True:
            self._changed.wait()
            if self._over:
                return
            try:
                self.comm = self._renewed()
                view = self._viewed()
                if not self._over:
                    self._installed(view)
            except Exception as error:
                if not self._over:
                    expected = isinstance(error, Error)
                    log.log(logging.WARNING, "%s: it is out of the job: %s", self.who, error, exc_info=not expected)
                    self._install(None)
                    self.comm.close(timeout=LEAVE, log_as=self.who)  # the others go on
                return
            self._watch()
