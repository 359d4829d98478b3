"""Messages that the other end of a control connection may not have, without I/O: another connection goes on with them.

Each end counts the messages that it got, and says so now and then (`has`).  On a new connection each says it first,
and nothing else until it has heard the other's: then what that lacks is sent again.  Each message arrives once, and
in its place.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
OFTEN = 16
"""Messages that an end gets before it says so."""
MOST = 4096
"""Messages that are kept: an end that says nothing for so long is none."""


class ResendQueue(Generic[T]):
    """One end's."""

    def __init__(self) -> None:
        self.got = self._told = self._first = 0
        """Messages of the other end; those that it knows of; ours that are not kept any more."""
        self._kept: collections.deque[T] = collections.deque()
        self.waits = False
        """Is there a new connection, on which the other end has not said yet what it has?"""

    def sends(self, message: T) -> bool:
        """Keep it.  Is it to be sent now?  OverflowError: the other end says nothing."""
        self._kept.append(message)
        if len(self._kept) > MOST:
            raise OverflowError
        return not self.waits

    def gets(self) -> bool:
        """A message has come.  Is it time to say so?"""
        self.got += 1
        return self.got - self._told >= OFTEN

    def says(self) -> int:
        """The count to be said."""
        self._told = self.got
        return self.got

    def begins(self) -> None:
        """There is a new connection."""
        self.waits = True

    def has(self, count: int) -> Sequence[T]:
        """The other end has so many: what is to be sent again.  ValueError: it cannot."""
        if not 0 <= count - self._first <= len(self._kept):
            raise ValueError(count)
        while self._first < count:
            self._kept.popleft()
            self._first += 1
        waited, self.waits = self.waits, False
        return list(self._kept) if waited else []
