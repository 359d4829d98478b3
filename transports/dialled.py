"""Channels that are connections, made one by one when a call first needs them: what tcp and verbs have in common."""

from __future__ import annotations

from collections.abc import Sequence


class DialledChannels:
    """The channels to these world ranks."""

    def look(self) -> object:
        """Called now and then while `open` waits; replaced by who has a reason to end it, by raising."""

    def __init__(self, name: str, members: Sequence[int]) -> None:
        self.name, self.members = name, members

    def offer(self) -> None:
        """The peers know the transport's address already."""
