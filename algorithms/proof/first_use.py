"""A foreign algorithm is proven for its size and root when it is first used; hocket's own are proven by its tests."""

from __future__ import annotations

from functools import lru_cache

from hocket.algorithms.language.registry import Algorithm
from hocket.algorithms.proof.verify import verify
from hocket.errors import Error, ScheduleError


@lru_cache(maxsize=256)
def prove(algorithm: Algorithm, size: int, root: int) -> None:
    """Prove it, once.  Raises ScheduleError on every rank alike, before anything is sent.

    It walks all ranks' steps: some 50 us for each message of the job (7 ms for a ring of 8 ranks, 0.5 s for one of 64).
    """
    try:
        verify(algorithm, size, root)
    except Error:
        raise
    except Exception as error:  # what the author's code raises, for any of the ranks
        raise ScheduleError(
            f"{algorithm.collective} {algorithm.name}, {size} ranks: its steps raise {type(error).__name__}: {error}"
        ) from error
