"""Names as numbers on the wire, from their second use on: a training step submits the same ones again and again.

All ranks get the same orders, so each of them numbers the names by itself, and all alike.
"""

from __future__ import annotations

from typing import Any

from hocket.training.agreeing.request import AUTO

MOST = 4096
"""So many names get numbers: those that come first.  Others go in full, as do names that are used once."""


class Numbers:
    """One rank's knowledge of the numbers of a process set."""

    def __init__(self) -> None:
        self.of: dict[str, int] = {}
        self.names: list[str] = []

    def ref(self, name: str) -> Any:
        """The reference of a name in an order: a number, a name that gets one, in a list, or a name that gets none."""
        number = self.of.get(name)
        if number is not None:
            return number
        if len(self.names) < MOST and AUTO not in name:
            self._add(name)
            return [name]
        return name

    def read(self, refs: list[Any]) -> tuple[str, ...]:
        """The names that `ref` told."""
        return tuple(self.names[ref] if isinstance(ref, int) else self._read(ref) for ref in refs)

    def _read(self, ref: Any) -> str:
        if isinstance(ref, str):
            return ref
        name: str = ref[0]
        self._add(name)
        return name

    def _add(self, name: str) -> None:
        self.of[name] = len(self.names)
        self.names.append(name)
