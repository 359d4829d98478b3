"""What hocket raises.  The class says whose fault it is; the text says who, where, what, and what to do.

The floor under every folder: imports nothing of hocket, may be imported by all of it.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence


class Error(Exception):
    """Base of everything that hocket raises on purpose."""


class ArgumentError(Error, ValueError):
    """This rank's call is wrong (shape, dtype, root, a closed communicator...); nothing was sent."""


class MismatchError(Error):
    """The ranks called different things.  Raised on all of them.

    `calls` maps each rank to the description of what it called and where.
    """

    def __init__(self, message: str, calls: dict[int, str] | None = None) -> None:
        super().__init__(message)
        self.calls = calls or {}


class PeerLostError(Error, ConnectionError):
    """Other processes of the job have gone.  `ranks` names them."""

    def __init__(self, message: str, ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


class TimeoutError(Error, builtins.TimeoutError):
    """A call did not finish in time.  `missing` names the ranks that had not come to it."""

    def __init__(self, message: str, missing: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.missing = tuple(missing)


class TransportError(Error, ConnectionError):
    """Bytes could not be moved: local and remote address, the system's reason, a hint."""


class ScheduleError(Error):
    """An algorithm is wrong: its schedule does not do what its collective promises, or would hang."""


class MemoryError(Error, builtins.MemoryError):
    """There is not enough memory here.  Raised on this rank; nothing was sent."""
