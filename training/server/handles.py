"""What a push or a pull that was begun returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hocket.errors import ArgumentError


class Handle:
    """A push or pull under way.  `wait()` returns the result: a pull's array; None of a push.

    `ended`: parts of it (slices, or a shard's rows) that have ended, in that order; of a pull they are in the result.
    """

    def __init__(self, result: Any, wait: Callable[[Handle, int, float | None], None]) -> None:
        self.result, self._wait = result, wait
        self.first: Handle | None = None
        """The push before a pull that was begun with it."""
        self.count = 0
        """Its parts."""
        self.ended: list[tuple[int, int]] = []
        self.why = ""
        """The first part that was refused."""

    def end(self, part: tuple[int, int], why: str) -> None:
        """A part has ended."""
        self.why = self.why or why
        self.ended.append(part)

    def done(self) -> bool:
        """Has all of it ended?  Never waits."""
        return len(self.ended) == self.count

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until it has ended.  Raises ArgumentError (the server has refused it), TimeoutError, PeerLostError."""
        if self.first is not None:
            self.first.wait(timeout)
        self._wait(self, self.count, timeout)
        if self.why:
            raise ArgumentError(self.why)
        return self.result

    def parts(self) -> Iterator[tuple[int, int]]:
        """The parts of a `Range`, as (first element, end), each as soon as it has ended."""
        seen = 0
        while seen < self.count:
            self._wait(self, seen + 1, None)
            if self.why:
                raise ArgumentError(self.why)
            yield self.ended[seen]
            seen += 1
