"""Channels that are connections, made one by one when a call first needs them: what tcp and verbs have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Dialler(Protocol):
    """A transport that knows which channels it must close."""

    unclosed: Any
    """A set; a weak one where channels that nobody holds any more close themselves."""


class DialledChannels:
    """The channels of `transport` to these world ranks."""

    def look(self) -> object:
        """Called now and then while `open` waits; replaced by who has a reason to end it, by raising."""

    def __init__(self, transport: Dialler, name: str, members: Sequence[int]) -> None:
        self.name, self.members = name, members
        self._unclosed = transport.unclosed
        self._unclosed.add(self)

    def offer(self) -> None:
        """The peers know the transport's address already."""

    def close(self) -> None:
        self._unclosed.discard(self)
