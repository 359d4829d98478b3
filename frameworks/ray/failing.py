"""hocket's errors under Ray: the same words, of classes that are RuntimeErrors too, which Ray's own groups raise."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import hocket

Function = TypeVar("Function", bound=Callable[..., Any])


class PeerLostError(hocket.PeerLostError, RuntimeError):
    """Other actors of the group have gone."""


class TransportError(hocket.TransportError, RuntimeError):
    """Bytes could not be moved."""


class TimeoutError(hocket.TimeoutError, RuntimeError):
    """A call did not finish in time."""


class MismatchError(hocket.MismatchError, RuntimeError):
    """The ranks called different things."""


class ArgumentError(hocket.ArgumentError, RuntimeError):
    """This rank's call is wrong."""


class Error(hocket.Error, RuntimeError):
    """Anything else."""


KINDS = {kind.__mro__[1]: kind for kind in
         (PeerLostError, TransportError, TimeoutError, MismatchError, ArgumentError, Error)}  # fmt: skip


def in_rays_words(function: Function) -> Function:
    """`function`, whose hocket errors become those above."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except hocket.Error as error:
            kind = KINDS.get(type(error))
            if kind is None:
                raise
            made = kind(*error.args)
            vars(made).update(vars(error))
            raise made.with_traceback(error.__traceback__) from None

    found: Any = call
    return found  # type: ignore[no-any-return]
