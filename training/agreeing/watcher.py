"""Watchers of the phases of each tensor; this one does not care."""

from __future__ import annotations

from collections.abc import Iterable


class Watcher:
    """For those who do: a class that overrides all of it."""

    cycles = False
    """Is it told when rank 0 is told of tensors?"""

    @property
    def on(self) -> bool:
        """Is tracing on?"""
        return False

    def begin(self, name: str, phase: str) -> None:
        """A tensor enters its first phase."""

    def performing(self, names: Iterable[str]) -> None:
        """The calls of these tensors are carried out now."""

    def end(self, name: str) -> None:
        """This tensor's call is done."""

    def cycle(self) -> None:
        """Rank 0 is told of tensors now."""
