"""A process's part in a job of servers and workers: it agrees on each generation's view, in a thread where ranks may
be lost.

An elastic communicator's next generation is that of the servers, too: after a loss, and when newcomers wait, every
member renews it, and says what it has; all make the same view of that.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from hocket.errors import ArgumentError, Error, PeerLostError, TimeoutError
from hocket.training.server.views import Says, View, decide

log = logging.getLogger("hocket")
WAIT = 10.0
"""Seconds in which a member has to renew; then it is left out."""
LEAVE = 0.1
"""Seconds that a member which leaves waits for the others to do so; they may go on."""


class Member:
    """`say`: what this process has, now.  `install`: called with each view, one after the other; None: it is out."""

    def __init__(self, comm: Any, say: Callable[[], Says], install: Callable[[View | None], None], who: str) -> None:
        self.comm, self._say, self._install, self.who = comm, say, install, who
        self.elastic = comm.door is not None
        self._changed, self._over = threading.Event(), False
        self._thread: threading.Thread | None = None
        view = self._viewed()
        if view.settings[1] and not self.elastic:
            raise ArgumentError(f"{who}: copies={view.settings[1]} needs a communicator of hocket.init(elastic=True)")
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

    def _viewed(self) -> View:
        """Of the communicator's generation, or of a later one if somebody is lost meanwhile."""
        while True:
            try:
                said = self.comm.share(list(self._say()), within="a parameter server")
            except PeerLostError:
                if not self.elastic:
                    raise
                self.comm = self._renewed()
                continue
            return decide(self.comm.generation, [Says(*each) for each in said], self.who)

    def _renewed(self) -> Any:
        without: Sequence[int] = ()
        while True:
            try:
                return self.comm.renew(without=without, timeout=WAIT)
            except TimeoutError as error:
                if not error.missing:
                    raise
                log.warning("%s: ranks %s have not come to a renewal in %g s: left out", self.who, error.missing, WAIT)
                without = error.missing

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
            except Error as error:
                if not self._over:
                    log.warning("%s: it is out of the job: %s", self.who, error)
                    self._install(None)
                return
            if not self._over:
                self._installed(view)
            self._watch()
