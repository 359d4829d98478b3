"""Texts have ranks of the job, and name the communicator where it is not the job's; attributes have its own ranks."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

import hocket
from support.jobs import Job

ALONE = 2
"""The rank of the job that does something else; in its communicator it is rank 1, and the job's rank 3 is rank 0."""


def _numbers(text: str) -> set[int]:
    """All that a text calls a rank."""
    found = re.findall(r"\branks? (\d+(?:(?:, | and )\d+)*)|(?:root|source|dest)=(\d+)", text)
    return {int(number) for each in found for number in re.findall(r"\d+", " ".join(each))}


def _right(text: str, job: set[int]) -> None:
    assert _numbers(text) == job and "communicator 'world/1.1' of ranks 3, 2" in text, text


def _errors(call: Callable[[hocket.Communicator, bool], object]) -> dict[int, hocket.Error]:
    """Errors of ranks 2 and 3 in a communicator whose ranks 1 and 0 they are."""

    def rank(comm: hocket.Communicator) -> hocket.Error | None:
        sub = comm.split(comm.rank // 2, key=-comm.rank)
        assert sub is not None
        try:
            if comm.rank > 1:
                call(sub, comm.rank == ALONE)
        except hocket.Error as error:
            return error
        return None

    return {r: error for r, error in enumerate(hocket.local_world(4).run(rank)) if error is not None}


X = np.ones(3)
CASES: dict[str, tuple[Callable[[hocket.Communicator, bool], object], set[int], set[int]]] = {
    "mismatch": (lambda sub, alone: sub.broadcast(X.copy(), int(not alone)), {2, 3}, {2, 3}),
    "timeout": (lambda sub, alone: alone or sub.allreduce(X.copy(), timeout=0.3), {3}, {2, 3}),
    "crossed": (lambda sub, alone: sub.recv(X.copy(), 1 - sub.rank, timeout=0.3), {2, 3}, {2, 3}),
    "size": (lambda sub, alone: sub.recv(X.copy(), 0) if alone else sub.send(X[:2], 1), {2}, {2, 3}),
    "close": (lambda sub, alone: sub.close() if alone else sub.allreduce(X.copy()), {2, 3}, {2, 3}),
    "closed": (lambda sub, alone: (sub.close(), sub.allreduce(X.copy())), {2, 3}, {2, 3}),
    "root": (lambda sub, alone: sub.broadcast(X.copy(), 7), {2, 3}, {2, 3, 7}),
    "dest": (lambda sub, alone: sub.send(X, 7), {2, 3}, {2, 3, 7}),
    "failed": (lambda sub, alone: sub.abort(ValueError("no")) if alone else sub.allreduce(X.copy()), {3}, {2, 3}),
}
"""Calls of both; ranks that raise; ranks in the texts."""


@pytest.mark.parametrize("kind", CASES)
def test_texts_have_ranks_of_the_job(kind: str) -> None:
    call, who, named = CASES[kind]
    errors = _errors(call)
    assert set(errors) == who, errors
    for error in errors.values():
        _right(str(error), named)
        for mine in (getattr(error, "ranks", ()), getattr(error, "missing", ()), getattr(error, "calls", {})):
            assert set(mine) <= {0, 1}, (error, mine)
    if kind == "mismatch":
        assert isinstance(errors[3], hocket.MismatchError) and "root=3" in errors[3].calls[1], errors[3].calls
    if kind == "timeout":
        assert isinstance(errors[3], hocket.TimeoutError) and errors[3].missing == (1,)


LOST = """
import os, time, hocket, numpy as np
comm = hocket.init()
sub = comm.split(comm.rank // 2, key=-comm.rank)
open(f"{__file__}.{comm.rank}", "w").close()
if comm.rank == 2:
    while not all(os.path.exists(f"{__file__}.{rank}") for rank in (0, 1, 3)):  # which may be in the split still
        time.sleep(0.01)
    os._exit(0)
try:
    sub.allreduce(np.ones(3)) if comm.rank == 3 else comm.allreduce(np.ones(3))
except hocket.PeerLostError as error:
    print(error.ranks, error)
"""


def test_a_rank_that_is_lost_is_told_by_its_rank_in_the_job() -> None:
    with Job(4, LOST) as job:
        ends = job.wait()
    assert ends[3].out.startswith("(1,) "), ends[3]
    _right(ends[3].out.partition("\n")[0], {2, 3})
    assert ends[0].out.startswith("(2,) rank 2 is gone") and "communicator 'world/" not in ends[0].out, ends[0]
