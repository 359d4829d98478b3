"""When a slice of a `Range` with `mean` steps: once a clock, when no worker's part of it is missing.

Each worker pushes once between two steps, or ends the clock without.  So what is first in a model may step, and be
pulled, while the rest is still on its way; a clock of the whole shard would make all wait for the last push.
"""

from __future__ import annotations

from collections.abc import Mapping


class Round:
    """`done`: clocks that have stepped.  `given`: the workers that have pushed since."""

    def __init__(self, done: int = 0) -> None:
        self.done, self.given = done, set[int]()

    def next(self, at: Mapping[int, int]) -> int:
        """The clock up to which it steps now, by the clocks of those who work; `done`: somebody's part is missing."""
        if not at or any(clock <= self.done and worker not in self.given for worker, clock in at.items()):
            return self.done
        return max(self.done + 1, min(at.values()))

    def step(self, clock: int) -> None:
        self.done = clock
        self.given.clear()
