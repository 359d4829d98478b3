"""A rank's end of the control plane, without I/O: what the coordinator says goes in, what it answers comes out.

`control/session.py` gives it a connection, and threads that wait for what it has heard.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

from hocket.control.protocol import messages as say
from hocket.control.protocol.membership import Gone

log = logging.getLogger("hocket.control")
Heard = tuple[type, say.Number]
"""An answer that somebody waits for: its type, and the number of its exchange, 0 if it has none."""


class Owner(Protocol):
    """Whose end it is; called on the thread that takes messages, and must not block."""

    def stop(self, fault: say.Fault) -> say.Account:
        """A communicator of this rank fails: stop waiting in it, and say what this rank is doing."""

    def account(self, comm: str) -> say.Account:
        """Another rank waits, and wants to know what this one is doing."""

    def hear(self, message: say.Verdict | say.Lost | say.Left | say.Told | say.OpenTransport) -> None:
        """Take a message that all ranks hear, or an answer to `Ask`."""


class Nobody:
    """Until there is an owner."""

    def stop(self, fault: say.Fault) -> say.Account:
        return {}

    def account(self, comm: str) -> say.Account:
        return {}

    def hear(self, message: object) -> None:
        pass


class Member:
    """`take(message)`: the answers to it.  What came for who waits is in `heard`; who is gone, in `gone`."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.gone = Gone()
        self.owner: Owner = Nobody()
        self.heard: dict[Heard, Any] = {}
        self.admitted = self.closed = False
        self.ended = ""
        """The end of its connection, in words."""

    def take(self, message: Any) -> list[say.Message]:
        return HANDLERS[type(message)](self, message) or []

    def _keep(self, message: Any) -> None:
        self.admitted |= isinstance(message, say.Welcome)
        self.heard[type(message), getattr(message, "number", 0)] = message

    def _stop(self, stop: say.Stop) -> list[say.Message]:
        try:
            account = self.owner.stop(stop.fault)
        except Exception as why:  # the others must not wait for its answer
            log.exception("hocket: rank %d could not say what it is doing", self.rank)
            account = {"state": "error", "text": repr(why)}
        return [say.Answer(stop.fault.comm, account)]

    def _lost(self, lost: say.Lost) -> None:
        for rank in lost.lost:
            self.gone.lost.setdefault(rank, lost.how)
        self.owner.hear(lost)

    def _left(self, left: say.Left) -> None:
        self.gone.leave(*left)
        self.owner.hear(left)

    def _asked(self, asked: say.Asked) -> list[say.Message]:
        return [say.Told(asked.comm, asked.by, self.owner.account(asked.comm))]

    def _ended(self, ended: say.Ended) -> None:
        """Rank 0 held the coordinator, so nobody else can tell."""
        self.ended = ended.how
        if self.admitted and not self.closed and 0 not in self.gone.left:
            self._lost(say.Lost(0, ended.how, sorted({0, *self.gone.lost})))

    def _pass_on(self, message: Any) -> None:
        self.owner.hear(message)


HANDLERS: dict[type, Callable[[Member, Any], list[say.Message] | None]] = {
    say.Welcome: Member._keep, say.Refused: Member._keep, say.Values: Member._keep, say.Missing: Member._keep,
    say.Bye: Member._keep, say.Stop: Member._stop, say.Lost: Member._lost, say.Left: Member._left,
    say.Asked: Member._asked, say.Ended: Member._ended, say.Verdict: Member._pass_on, say.Told: Member._pass_on,
    say.OpenTransport: Member._pass_on,
}  # fmt: skip
