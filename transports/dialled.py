"""What lanes have in common whose channels are connections, made one by one when a call first needs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Dialler(Protocol):
    """A transport that knows which lanes it must close."""

    lanes: Any
    """A set; a weak one where lanes that nobody holds any more close themselves."""


class DialledLane:
    """One lane of `transport`, for these world ranks."""

    def look(self) -> object:
        """Called now and then while `open` waits; replaced by who has a reason to end it, by raising."""

    def __init__(self, transport: Dialler, name: str, members: Sequence[int]) -> None:
        self.name, self.members = name, members
        self._lanes = transport.lanes
        self._lanes.add(self)

    def offer(self) -> None:
        """The peers know the transport's address already."""

    def close(self) -> None:
        self._lanes.discard(self)
