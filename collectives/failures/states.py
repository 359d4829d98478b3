"""The states of a communicator: open, closing, failed or left.  Events go in; its next state and what to do come out.

docs/architecture.md has the table; `tests/collectives/failures/test_states.py` walks every edge of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from hocket.control.protocol.messages import Lost, Verdict


class Do(Enum):
    """A transition asks for these acts."""

    HALT = "halt"
    """End every wait here; calls before the event's `first` may finish, as others have finished them."""
    WAKE = "wake"
    """Wake those who wait for the verdict."""
    RELEASE = "release"
    """End the waits of streams, which closing may wait for."""


@dataclass(frozen=True)
class State:
    """The fields that only some states fill in."""

    error: BaseException | None = None
    """The error that ended it; None: nothing, or it is not known yet."""
    judged: Judged | None = None
    """The first verdict of the coordinator, as it came here."""
    raised: bool = False
    """Has a call raised what ended it?"""

    @property
    def verdict(self) -> Verdict | Lost | None:
        """The coordinator's."""
        return None if self.judged is None else self.judged.verdict

    @property
    def closed(self) -> bool:
        """Has this rank begun to leave the communicator, or left it?"""
        return isinstance(self, (Closing, Left))


class Open(State):
    """Calls may be made."""


class Closing(State):
    """This rank waits for the others to close it, too."""


@dataclass(frozen=True)
class Failed(State):
    """A call has failed: the waits of all calls end, or have ended; the verdict may come yet."""

    closing: bool = False
    """Did it fail in its close()?"""

    @property
    def closed(self) -> bool:
        return self.closing


class Left(State):
    """This rank has left it."""


@dataclass(frozen=True)
class Stopped:
    """The coordinator: it failed on some rank."""

    first: int = 0


@dataclass(frozen=True)
class Judged:
    """The coordinator's verdict, and the exception that it becomes here."""

    verdict: Verdict | Lost
    error: BaseException
    first: int = 0
    during: str = ""
    """The call in which it found this rank."""


@dataclass(frozen=True)
class Broke:
    """The error that ended it, as this rank knows."""

    error: BaseException
    first: int = 0


@dataclass(frozen=True)
class Raising:
    """A call of this rank raises, or will."""


@dataclass(frozen=True)
class Leaving:
    """close() begins."""


@dataclass(frozen=True)
class Over:
    """The communicator is closed, dropped, or its job has ended.  `error`: what later calls raise."""

    error: BaseException


@dataclass(frozen=True)
class Forked:
    """This process is a fork of the rank's."""

    error: BaseException


Event = Stopped | Judged | Broke | Raising | Leaving | Over | Forked
HALT, WAKE, RELEASE = (Do.HALT,), (Do.WAKE, Do.HALT), (Do.RELEASE,)
Next = tuple[State, tuple[Do, ...]]


def step(state: State, event: Event) -> Next:
    """The next state, and what to do."""
    return TABLE[type(state), type(event)](state, event)


def _failed(state: State, **what: Any) -> Failed:
    return Failed(closing=isinstance(state, Closing), **what)


def _leaving(state: Failed, event: Leaving) -> Next:
    """Nobody is waited for where the error is known; else close() waits for the verdict."""
    known = state.error is not None
    return (Left(state.error, state.judged, state.raised) if known else replace(state, closing=True)), ()


def _judged(state: Failed, event: Judged) -> Next:
    """The first verdict counts, and an error that this rank knew before."""
    if state.judged is not None:
        return state, ()
    return replace(state, judged=event, error=state.error or event.error), WAKE


def _over(state: Failed, event: Over) -> Next:
    """A close() that failed has told it; later calls hear that it is closed."""
    return Left(event.error if state.closing else state.error or event.error, state.judged, state.raised), ()


TABLE: dict[tuple[type[State], type], Callable[[Any, Any], Next]] = {
    (Failed, Stopped): lambda state, event: (state, HALT),
    (Failed, Judged): _judged,
    (Failed, Broke): lambda state, event: (replace(state, error=state.error or event.error), HALT),
    (Failed, Raising): lambda state, event: (replace(state, raised=True), ()),
    (Failed, Leaving): _leaving,
    (Failed, Over): _over,
    (Left, Stopped): lambda state, event: (state, HALT),
    (Left, Judged): lambda state, event: (state, RELEASE),
    (Left, Broke): lambda state, event: (state, HALT),
    (Left, Raising): lambda state, event: (replace(state, raised=True), ()),
    (Left, Leaving): lambda state, event: (state, ()),
    (Left, Over): lambda state, event: (state, ()),
    (Open, Leaving): lambda state, event: (Closing(), ()),
    (Closing, Leaving): lambda state, event: (state, ()),
}
for _going in (Open, Closing):
    TABLE |= {
        (_going, Stopped): lambda state, event: (_failed(state), HALT),
        (_going, Judged): lambda state, event: (_failed(state, judged=event, error=event.error), WAKE),
        (_going, Broke): lambda state, event: (_failed(state, error=event.error), HALT),
        (_going, Raising): lambda state, event: (_failed(state, raised=True), ()),
        (_going, Over): lambda state, event: (Left(event.error), ()),
    }
for _any in (Open, Closing, Failed, Left):
    TABLE[_any, Forked] = lambda state, event: (Left(event.error), HALT)
