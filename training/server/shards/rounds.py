"""When a slice of a `Range` with `mean` steps: once a clock, when no worker's part of it is missing.

Each worker pushes once between two steps, or ends the clock without.  So what is first in a model may step, and be
pulled, while the rest is still on its way; a clock of the whole shard would make all wait for the last push.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class Round:
    """`done`: clocks that have stepped.  `given`: the workers that have pushed since, or have left behind a
    later clock."""

    def __init__(self, done: int = 0) -> None:
        self.done, self.given = done, set[int]()
        self.coming: dict[int, int] = {}
        """Workers that have come, and whose first clock is a later one: it has no part in the mean until then."""

    def next(self, at: Mapping[int, int]) -> int:
        """The clock up to which it steps now, by the clocks of those who work; `done`: somebody's part is missing."""
        if not at or any(clock <= self.done and worker not in self.given for worker, clock in at.items()):
            return self.done
        return max(self.done + 1, min(at.values()))

    def workers(self, at: Mapping[int, int]) -> int:
        """By how many the sum of pushes is divided."""
        return len(self.given.union(worker for worker in at if worker not in self.coming))

    def comes(self, worker: int, clock: int) -> None:
        """A worker begins at this clock."""
        if clock > self.done:
            self.coming[worker] = clock

    def leaves(self, worker: int, clock: int) -> None:
        """A worker leaves at this clock: it is in the mean of those that it has ended, though it pushed nothing."""
        if clock > self.done and worker not in self.coming:
            self.given.add(worker)

    def step(self, clock: int) -> None:
        self.done = clock
        self.given.clear()
        self.coming = {worker: first for worker, first in self.coming.items() if first > clock}

    def numbers(self) -> list[int]:
        """Numbers that `restored` takes."""
        coming = [each for pair in sorted(self.coming.items()) for each in pair]
        return [self.done, len(self.given), *sorted(self.given), *coming]

    @staticmethod
    def restored(numbers: Sequence[int]) -> Round:
        """Raises ValueError: `numbers` has not given these."""
        if len(numbers) < 2 or not 0 <= numbers[1] <= len(numbers) - 2 or (len(numbers) - numbers[1]) % 2:
            raise ValueError(f"a round of {len(numbers)} numbers")
        made, end = Round(numbers[0]), 2 + numbers[1]
        made.given.update(numbers[2:end])
        made.coming = dict(zip(numbers[end::2], numbers[end + 1 :: 2], strict=True))
        return made
