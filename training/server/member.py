"""A process's part in a job of servers and workers: it agrees on each generation's view, in a thread where ranks may
be lost.

An elastic communicator's next generation is that of the servers, too: after a loss, and when newcomers wait, every
member renews it, and says what it has; all make the same view of that.  Members that have a view wait for nobody for
longer than RENEW, and a newcomer that says something else is left out, and told (views.py).  What is done next is
view_machine.py's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from hocket.arguments import printable
from hocket.errors import ArgumentError, Error, MismatchError, PeerLostError, TimeoutError
from hocket.training.crew.machine import Fails, Raise
from hocket.training.server import view_machine as of
from hocket.training.server.views import MemberInfo, View

log = logging.getLogger("hocket")
WAIT = 10.0
"""Seconds in which a newcomer has to call `serve` or `Client`; then it is left out."""
RENEW = 1.5 * WAIT
"""Seconds in which a member has to renew: one that has waited for a newcomer comes in time."""
SHOWN = 400
"""Characters of what is said of a newcomer."""
LEAVE = 0.1
"""Seconds that a member which leaves waits for the others to do so; they may go on."""


class ViewMember:
    """This process as a member of the servers' views.

    `say` tells what this process has, now.  `install` is called with each view, one after the other; with None when
    this process is a member no more.
    """

    def __init__(
        self, comm: Any, say: Callable[[], MemberInfo], install: Callable[[View | None], None], who: str
    ) -> None:
        self.comm, self._say, self._install, self.who = comm, say, install, who
        self.elastic = comm.door is not None
        self._changed, self._over = threading.Event(), False
        self._machine = of.ViewMachine(who, self.elastic, comm.generation)
        self._thread: threading.Thread | None = None
        self._uids: list[int] = []
        """The members' processes, by rank."""
        try:
            self._view(self._machine.begin())
        except MismatchError:
            if self.comm.generation:  # the others go on
                self.comm.close(timeout=LEAVE, log_as=self.who)
            raise
        if self.elastic:
            self._watch()
            self._thread = threading.Thread(target=self._keep, name="hocket-view", daemon=True)
            self._thread.start()

    @property
    def dead(self) -> list[int]:
        """Processes that were lost in this generation, where no other one comes."""
        return [] if self.elastic else [self._uids[rank] for rank in self.comm.lost]

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

    def _view(self, instructions: list[Any]) -> None:
        """Do what the machine says, until there is a view."""
        began = time.monotonic()
        while True:
            *notes, last = instructions
            for note in notes:
                log.warning("%s", printable(note.text, SHOWN))
            if isinstance(last, Raise):
                raise last.error
            if isinstance(last, of.Install):
                return self._installed(last.view)
            try:
                event: Any = self._say_and_hear(last) if isinstance(last, of.Say) else self._renew(last)
            except (PeerLostError, TimeoutError, MismatchError) as error:
                missing = tuple(rank for rank in getattr(error, "missing", ()) if rank != self.comm.rank)
                over = not missing and time.monotonic() - began > self.comm.timeout
                event = Fails(error, missing, getattr(error, "called", ()), over)
            instructions = self._machine.take(event)

    def _say_and_hear(self, say: of.Say) -> of.Words:
        patience = None if say.patient else WAIT
        words = self.comm.share(list(self._say()), within="a parameter server", timeout=patience)
        self._uids = [word[0] for word in words]
        return of.Words(self.comm.rank, self.comm.generation, words, self.comm.previous_ranks)

    def _renew(self, renew: of.Renew) -> of.Renewed:
        self.comm = self.comm.renew(without=renew.without, timeout=RENEW)
        return of.Renewed()

    def _installed(self, view: View) -> None:
        if self._over:
            return
        if view.settings[1] and not self.elastic:
            copies = view.settings[1]
            raise ArgumentError(f"{self.who}: copies={copies} needs a communicator of hocket.init(elastic=True)")
        self.mark("server: generation", view.generation)
        self._install(view)

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
                self._view(self._machine.take(of.Changed()))
            except Exception as error:
                if not self._over:
                    expected = isinstance(error, Error)
                    log.log(logging.WARNING, "%s: it is out of the job: %s", self.who, error, exc_info=not expected)
                    self._install(None)
                    self.comm.close(timeout=LEAVE, log_as=self.who)  # the others go on
                return
            self._watch()
