"""The members of a loop: what `Outer` asks of a crew; and a communicator as a crew that never changes."""

from __future__ import annotations

import contextlib
from typing import Any, Protocol

from hocket.errors import ArgumentError, Error
from hocket.training.flat import Array


class Again(Error):
    """A round was lost with a rank, and those who go on hold one state: begin the round again."""


class Replica(Protocol):
    """A rank's state, as a crew compares it and moves it to those who lack it.  `Outer` is one.

    It may have three attributes more: `made`, by name what has to be alike where it is moved (JSON; a newcomer with
    another is refused, alone); `word`, what it tells the others at each moment (JSON; `Crew.words`); `patient`, is it
    to wait for late members as long as for an agreement?
    """

    @property
    def position(self) -> int:
        """The progress of the state: rounds that count here.  The state of the most advanced is taken by the others."""

    def arrays(self) -> dict[str, Array]:
        """The state's vectors, to be sent, or overwritten by another rank's; contiguous, the same on all ranks of one
        position."""

    def numbers(self) -> dict[str, Any]:
        """The rest of it, as JSON has it."""

    def load(self, numbers: dict[str, Any]) -> None:
        """Go on from another rank's state: its vectors are in `arrays` already."""


class Crew(Protocol):
    """The ranks that train together, while ranks are lost and come."""

    @property
    def comm(self) -> Any:
        """The members' communicator."""

    @property
    def left_out(self) -> tuple[Any, ...]:
        """Members that are not in the last `present`: they are late."""

    def boundary(self, state: Replica) -> Any:
        """All together, between two rounds: newcomers come in.  What has changed, or None."""

    def attempt(self, state: Replica) -> contextlib.AbstractContextManager[Any]:
        """A loss inside the block: the others go on with one state, and `Again` is raised."""

    def present(self) -> Any:
        """The communicator of those who have come to this round."""


class Fixed:
    """A communicator as a crew: nobody is lost, and nobody comes."""

    left_out = ()

    def __init__(self, comm: Any) -> None:
        self.comm = comm

    def boundary(self, state: Replica) -> None:
        """Nobody comes."""

    def attempt(self, state: Replica) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def present(self) -> Any:
        return self.comm


def crew(given: Any) -> Crew:
    """A crew as it is, a communicator as one."""
    if all(hasattr(given, name) for name in ("boundary", "attempt", "present")):
        return given  # type: ignore[no-any-return]
    if not hasattr(given, "allreduce"):
        raise ArgumentError(f"the first argument of an outer loop must be a communicator or a crew, got {given!r}")
    return Fixed(given)
