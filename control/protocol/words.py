"""The words between members of an agreement (decree.py), the events of one of them, and its acts then."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Ballot = tuple[int, int]
How = Literal["dead", "left", "unreachable", "excluded", "late"]
NONE: Ballot = (-1, -1)


class Made(NamedTuple):
    """The next generation.  Members have their old order; newcomers come behind."""

    members: tuple[int, ...]
    """Their ranks in this generation."""
    newcomers: tuple[str, ...]
    infos: tuple[Any, ...]
    """The words of each member."""
    lost: tuple[tuple[int, How], ...]
    """The ranks that are no members any more, and why."""


class Prepare(NamedTuple):
    ballot: Ballot


class Promise(NamedTuple):
    ballot: Ballot
    info: Any
    without: tuple[int, ...]
    least: int
    accepted: Ballot
    value: Made | None
    admit: bool = True
    late: tuple[int, ...] = ()
    met: int = 2


class Accept(NamedTuple):
    ballot: Ballot
    value: Made


class Accepted(NamedTuple):
    ballot: Ballot


class Refuse(NamedTuple):
    """The answer to a ballot that is lower than this one."""

    ballot: Ballot


class Decided(NamedTuple):
    value: Made


class Learn(NamedTuple):
    """Whom do you wait for?  The answer is `Lacks`, or `Decided`."""


class Lacks(NamedTuple):
    """Not yet: these ranks have not called."""

    ranks: tuple[int, ...]


class Here(NamedTuple):
    """I have called.  Nothing depends on it but who is called late."""


class Excludes(NamedTuple):
    """I go on without these: they do not lead.  A later word replaces it."""

    ranks: tuple[int, ...]


class Call(NamedTuple):
    """This rank wants the next generation.  A later call replaces what it said, if nothing has been proposed yet."""

    info: Any = None
    without: tuple[int, ...] = ()
    least: int = 1
    admit: bool = True
    """Newcomers are let in if every member says so."""
    most: int = 0
    """Members that there is room for; 0: no limit."""
    late: tuple[int, ...] = ()
    """Ranks that are not waited for; they are members if they have called in time."""
    met: int = 2
    """Stage of this generation: 1: all have come to its meeting; 2: and all know that."""


class Late(NamedTuple):
    """This rank's time is nearly over: `missing` is to say the leader's words soon."""


class Away(NamedTuple):
    """The connection to this rank ended."""

    rank: int


class Back(NamedTuple):
    rank: int


class Proven(NamedTuple):
    """This rank takes no part any more: its host's kernel or launcher says so, or it has said goodbye itself."""

    rank: int
    left: bool = False


class Newcomer(NamedTuple):
    """Somebody waits to be let in."""

    name: str


class Withdrawn(NamedTuple):
    """This newcomer does not wait any more."""

    name: str


class Granted(NamedTuple):
    """Whom the store has let go on: the first that claimed."""

    members: tuple[int, ...]


class SendTo(NamedTuple):
    """An instruction: to one rank.  It carries the generation."""

    rank: int
    generation: int
    message: Any


class Claim(NamedTuple):
    """An instruction: ask the store for the one grant of this generation, `Store.first`; take `Granted`."""

    generation: int
    members: tuple[int, ...]
