"""Whose message was it?  A blocking receive from any source does not say, and several ranks may send the same bytes."""

from __future__ import annotations

from collections.abc import Iterable


class Orders:
    """The orders in which messages can have come: each source's in the order in which it sent them.

    `sent`: the sources' messages.  Two booleans have four values, so what came may be the next message of several
    sources.  All of them are followed: `possible` holds how many of each source's messages have come, in each case.
    """

    def __init__(self, sent: Iterable[list[bytes]]) -> None:
        self.sent = list(sent)
        self.possible = {(0,) * len(self.sent)}

    def take(self, came: bytes) -> bool:
        """This came.  Can it be a source's next message?"""
        self.possible = {
            (*taken[:source], at + 1, *taken[source + 1 :])
            for taken in self.possible
            for source, at in enumerate(taken)
            if at < len(self.sent[source]) and self.sent[source][at] == came
        }
        return bool(self.possible)
