"""A foreign algorithm is proven for its size and root when it is first used; hocket's own are proven by its tests."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from itertools import islice
from operator import index

from hocket.algorithms.language.registry import Algorithm
from hocket.algorithms.language.schedule import Action, Copy, Recv, Send, Step
from hocket.algorithms.proof.verify import verify
from hocket.errors import Error, ScheduleError

MOST = 100_000
"""Steps of a rank.  An algorithm that yields more may never end."""


@lru_cache(maxsize=64)
def proven(algorithm: Algorithm, size: int, root: int) -> Algorithm:
    """The same algorithm for this size and root, whose steps are those that were proven.

    Raises ScheduleError on every rank alike, before anything is sent.  It walks all ranks' steps once: a ring of 8
    takes 2 ms, one of 64 0.25 s (AMD EPYC, Zen 3: `python -m timeit -s "from hocket.algorithms import get, verify"
    "verify(get('allreduce', 'ring'), 64)"`); it grows with the messages of all ranks.
    """
    about = f"{algorithm.collective} {algorithm.name}, {size} ranks"
    try:
        chunks = index(algorithm.chunks(size))
        programs = [_program(algorithm, rank, size, root) for rank in range(size)]
        walked = dataclasses.replace(
            algorithm, steps=lambda rank, size, root: iter(programs[rank]), chunks=lambda size: chunks,
            scratch=index(algorithm.scratch),
        )  # fmt: skip
        verify(walked, size, root)
    except _OddError as why:
        raise ScheduleError(f"{about}: {why}") from None
    except Error:
        raise
    except Exception as error:  # what the author's code raises, for any of the ranks
        raise ScheduleError(f"{about}: its steps raise {type(error).__name__}: {error}") from error
    return walked


class _OddError(Exception):
    """An algorithm yielded no schedule; the text says why."""


def _program(algorithm: Algorithm, rank: int, size: int, root: int) -> list[Step]:
    steps = list(islice(algorithm.steps(rank, size, root), MOST + 1))
    if len(steps) > MOST:
        raise _OddError(f"rank {rank} yields more than {MOST:,} steps; does it end?")
    return [tuple(_plain(op) for op in step) for step in steps]


def _plain(op: Action) -> Action:
    """The op, of ints and tuples."""
    if isinstance(op, Copy):
        return Copy(index(op.source), index(op.target))
    if not isinstance(op, (Send, Recv)):
        raise _OddError(f"{op!r} is not a Send, Recv or Copy")
    chunks = op.chunks
    if hasattr(chunks, "__index__"):
        chunks = index(chunks)
    elif not isinstance(chunks, range):
        chunks = tuple(map(index, chunks))
    return op._replace(peer=index(op.peer), chunks=chunks)
