"""The errors that hocket raises.  The class says whose fault it is; the text says who, where, what, and what to do.

Ranks in a text are the job's; those in an attribute are the communicator's on which the call was made.
The floor under every folder: imports nothing of hocket, may be imported by all of it.
"""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar


class Error(Exception):
    """Base of everything that hocket raises on purpose."""


class ArgumentError(Error, ValueError):
    """This rank's call is wrong (shape, dtype, root, a closed communicator...); nothing was sent."""


class MismatchError(Error):
    """The ranks called different things.  Raised on all of them.

    `calls` maps each rank of the communicator to the description of what it called and where.
    """

    def __init__(self, message: str, calls: dict[int, str] | None = None) -> None:
        super().__init__(message)
        self.calls = calls or {}


class PeerLostError(Error, ConnectionError):
    """Other processes of the job have gone.  `ranks` names them, by rank of the communicator."""

    def __init__(self, message: str, ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


class TimeoutError(Error, builtins.TimeoutError):
    """A call did not finish in time.  `missing` names the ranks of the communicator that had not come.

    `called`: of `renew`, the ranks that have called it, also those that a member has left out before.
    """

    def __init__(self, message: str, missing: Sequence[int] = (), called: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.missing, self.called = tuple(missing), tuple(called)


class TransportError(Error, ConnectionError):
    """Bytes could not be moved: local and remote address, the system's reason, a hint."""


class ScheduleError(Error):
    """An algorithm is wrong: its schedule does not do what its collective promises, or would hang."""


class MemoryError(Error, builtins.MemoryError):
    """There is not enough memory here.  Raised on this rank; nothing was sent."""


KINDS = (
    ArgumentError, MismatchError, PeerLostError, TimeoutError, TransportError, ScheduleError, MemoryError, Error,
)  # fmt: skip
Kind = TypeVar("Kind", bound=Error)


class Under:
    """hocket's errors as classes that are another system's too: what `under` makes.

    `classes[hocket.PeerLostError]` is the class for that one.
    """

    def __init__(self, made: dict[type[BaseException], type[Error]], reword: Callable[[str], str]) -> None:
        self._made, self._reword = made, reword

    def __getitem__(self, kind: type[Kind]) -> type[Kind]:
        found: Any = self._made[kind]
        return found  # type: ignore[no-any-return]

    def turned(self, error: BaseException) -> BaseException:
        """The same error, with its attributes and traceback, as one of these classes; any other error, as it is."""
        kind = self._made.get(type(error))
        if kind is None:
            return error
        made = kind(self._reword(str(error)))
        vars(made).update(vars(error))
        return made.with_traceback(error.__traceback__)

    @contextlib.contextmanager
    def raised(self) -> Generator[None, None, None]:
        """Inside this block, or in a function that it decorates, hocket's errors are raised as these classes."""
        try:
            yield
        except Error as error:
            raise self.turned(error) from None


def under(
    base: type[Exception], module: str, reword: Callable[[str], str] = str, **bases: type[Exception]
) -> Under:
    """For each class of hocket's errors, make one of the same name that is both that and `base`, of another system.

    Its users then catch hocket's errors as that system's.  `bases`: by name, those that are another class than `base`;
    one that is derived from an error of hocket's is taken as it is.  `reword`: from hocket's text to that of the error.
    `module`: `__name__`; errors can be pickled if each class has its own name there.

    >>> class TheirError(RuntimeError): ...
    >>> theirs = under(TheirError, __name__, PeerLostError=OSError)
    >>> try:
    ...     with theirs.raised():
    ...         raise TimeoutError("rank 1 did not come", [1])
    ... except TheirError as error:
    ...     isinstance(error, TimeoutError), error.missing
    (True, (1,))
    >>> issubclass(theirs[PeerLostError], OSError), issubclass(theirs[PeerLostError], TheirError)
    (True, False)
    """
    made: dict[type[BaseException], type[Error]] = {}
    for kind in KINDS:
        other = bases.get(kind.__name__, base)
        new = {"__doc__": kind.__doc__, "__module__": module}
        made[kind] = other if issubclass(other, kind) else type(kind.__name__, (kind, other), new)
    return Under(made, reword)
