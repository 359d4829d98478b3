"""allreduce and broadcast of lists, tuples and dicts of arrays."""

from __future__ import annotations

import re
import threading
import time
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import hocket
from hocket.collectives.communicator import trees
from hocket.errors import ArgumentError, MismatchError
from support.worlds import spread

Array = np.ndarray[Any, Any]


def some(rank: int) -> dict[str, Any]:
    """Arrays of each kind: small and large, of five dtypes, strided, of torch, empty, without an axis, nested."""
    base = rank + 1.0
    return {
        "w": [np.full((2, 3), base), np.full(trees.FAR // 8 + 1, base), np.full((4, 6), base, np.float32)[:, ::2]],
        "b": (torch.full((5,), base), torch.full((2, 2), base, dtype=torch.bfloat16), np.full((), base)),
        "a": {"k": np.full(3, base, ml_dtypes.bfloat16), "j": [np.full(7, rank, np.int64), np.empty(0)]},
        "f": np.asfortranarray(np.full((3, 5), base)),
    }


def flat(tree: Any) -> list[Array]:
    if isinstance(tree, dict):
        return [x for key in sorted(tree) for x in flat(tree[key])]
    if isinstance(tree, (list, tuple)):
        return [x for each in tree for x in flat(each)]
    return [tree.double().numpy() if isinstance(tree, torch.Tensor) else np.asarray(tree, np.float64)]


def same(a: Any, b: Any) -> bool:
    return all((got == right).all() for got, right in zip(flat(a), flat(b), strict=True))


def all_ways(comm: hocket.Communicator) -> None:
    """Each twice, as the second call of a kind takes the short way."""
    size = comm.size
    want = [np.sum([flat(some(r))[i] for r in range(size)], axis=0) for i in range(len(flat(some(0))))]
    for _ in range(2):
        mine = some(comm.rank)
        assert comm.allreduce(mine) is mine
        for got, right in zip(flat(mine), want, strict=True):
            np.testing.assert_array_equal(got, right)
        mine = some(comm.rank)
        work = comm.allreduce(mine, "max", async_op=True)
        assert work.result() is mine and same(mine, some(size - 1))
        mine, other = some(comm.rank), some(comm.rank)
        with hocket.group():
            assert comm.broadcast(mine, size - 1) is mine
            comm.allreduce([other["w"], other["b"]])
        assert same(mine, some(size - 1))
        assert flat(other["b"])[0][0] == size * (size + 1) / 2
    call = comm.prepare("allreduce", [x := np.ones(2), np.ones(3)])
    call()
    assert call() is not None and (x == size**2).all()
    assert comm.allreduce([]) == [] and comm.broadcast({}) == {}


@pytest.mark.parametrize(("size", "transport"), [(1, "threads"), (3, "threads"), (2, "shm"), (3, "tcp")])
def test_every_array_gets_its_part(size: int, transport: str) -> None:
    spread(all_ways, size, transport)


def test_a_dict_is_taken_in_the_order_of_its_keys() -> None:
    def run(comm: hocket.Communicator) -> list[float]:
        keys = ["a", "b"] if comm.rank else ["b", "a"]
        tree = {key: np.full(3, ord(key) + 0.0) for key in keys}
        comm.allreduce(tree)
        return [float(tree[key][0]) for key in "ab"]

    assert hocket.local_world(2).run(run) == [[194.0, 196.0]] * 2


def test_small_ones_are_one_call() -> None:
    def run(comm: hocket.Communicator) -> list[tuple[int, int]]:
        comm.allreduce([np.ones(4, np.float32) for _ in range(100)])
        comm.allreduce([np.ones(trees.NEAR, np.float32), np.ones(1)])
        return [(s.calls, s.bytes) for s in comm.stats() if s.collective == "allreduce"]

    calls = hocket.local_world(2).run(run)[0]
    assert sum(n for n, _ in calls) == 3 and sum(nbytes for _, nbytes in calls) == 1600 + 4 * trees.NEAR + 8


def test_lists_that_differ_are_told_on_all_ranks() -> None:
    """Also where their lengths add up to the same."""

    def run(comm: hocket.Communicator) -> str:
        with pytest.raises(MismatchError) as told:
            comm.allreduce([np.ones(3 + comm.rank), np.ones(4 - comm.rank)])
        return str(told.value)

    for text in hocket.local_world(2).run(run):
        assert "rank 1 called allreduce(float64[7], op='sum') within a list of 2 arrays (float64[4], float64[3]" in text


def again(comm: hocket.Communicator) -> None:
    """Lists that are like an earlier one, and that are nearly so."""
    size, total = comm.size, float(sum(range(1, comm.size + 1)))

    def made(*counts: int, dtype: Any = float) -> list[Array]:
        return [np.full(n, comm.rank + 1, dtype) for n in counts]

    def summed(arrays: Any, want: float = total) -> None:
        assert comm.allreduce(arrays) is arrays
        assert all((each == want).all() for each in arrays), arrays

    for _ in range(3):
        summed(made(3, 4))
        summed(tuple(made(3, 4)))
        assert (comm.allreduce(made(3, 4), "max")[1] == size).all()
        assert (comm.broadcast(made(3, 4), size - 1)[1] == size).all()
        assert (comm.broadcast(made(3, 4), root=0)[0] == 1).all()
        summed(made(4, 3))  # another list of as many bytes
        summed(made(3, 4, dtype=np.float32))
        summed(made(3, 4, dtype=np.int64))
        summed([*made(3), made(4, 4)[0].reshape(2, 2)])  # other shapes are the same bytes
        summed([made(3)[0], np.full(8, comm.rank + 1.0)[::2]])
        summed([made(3)[0], np.full(4, comm.rank + 1.0, ">f8")][:1])
        summed([made(3)[0], torch.full((4,), comm.rank + 1.0, dtype=torch.float64)])
        summed(made(0, 0))
        nested = [made(3)[0], made(4)]
        comm.allreduce(nested)
        assert (nested[1][0] == total).all()
        with hocket.group():
            comm.allreduce(later := made(3, 4))
        assert (later[0] == total).all()
        work = comm.allreduce(later := made(3, 4), async_op=True)
        assert work.result() is later and (later[1] == total).all()
    frozen = made(3, 4)
    frozen[1].flags.writeable = False
    with pytest.raises(ArgumentError, match=re.escape("x[1] is read-only")):
        comm.allreduce(frozen)
    summed(made(3, 4))
    frozen[0][:] = 7  # the root of a broadcast may hold what nobody may write to
    assert (comm.broadcast(frozen if comm.rank == 0 else made(3, 4))[0] == 7).all()


@pytest.mark.parametrize(("size", "transport"), [(1, "threads"), (3, "threads"), (2, "shm"), (2, "tcp")])
def test_lists_like_an_earlier_one(size: int, transport: str) -> None:
    spread(again, size, transport)


def test_a_list_that_was_seen_takes_the_short_way() -> None:
    """No part of the general way is called."""

    def run(comm: hocket.Communicator) -> int:
        arrays = [np.ones(2) for _ in range(9)]
        comm.allreduce(arrays)
        comm.runner.tree = comm.runner.general = None
        comm.allreduce([np.ones(2) for _ in range(9)])
        return sum(s.calls for s in comm.stats() if s.collective == "allreduce")

    assert hocket.local_world(2).run(run) == [2, 2]


def test_a_list_that_another_thread_changes_meanwhile() -> None:
    def run(comm: hocket.Communicator) -> bool:
        arrays = [np.ones(2), np.ones(2)]
        comm.allreduce([np.ones(2), np.ones(2)])
        if comm.rank:
            time.sleep(0.2)
        else:
            threading.Timer(0.1, arrays.clear).start()
        comm.allreduce(arrays)
        return not arrays or bool((arrays[0] == 2).all())

    assert hocket.local_world(2).run(run) == [True, True]


def test_what_is_no_list_of_arrays_is_refused() -> None:
    frozen = np.ones(2)
    frozen.flags.writeable = False

    def run(comm: hocket.Communicator) -> None:
        for call, why in (
            (lambda: comm.allreduce([np.ones(2), 1.0]), "x[1] is a float"),
            (lambda: comm.allreduce([np.ones(1), [frozen]]), "x[1][0] is read-only"),
            (lambda: comm.allgather([np.ones(2)]), "allgather takes one array; allreduce and broadcast take lists"),
            (lambda: comm.allreduce([np.ones(2)], out=[np.ones(2)]), "out and residuals must be None"),
            (lambda: comm.allreduce({1: np.ones(2), "a": np.ones(2)}), "keys cannot be sorted"),
            (lambda: comm.allreduce({"w": [np.ones(1), (frozen,)], "b": np.ones(1)}), "x['w'][1][0] is read-only"),
            (lambda: comm.allreduce({"b": np.ones(1), "a": ["text"]}), "x['a'][0] is a str"),
            (lambda: comm.allreduce([np.array([object()])]), "x[0] holds Python objects"),
        ):  # fmt: skip
            with pytest.raises(ArgumentError, match=re.escape(why)):
                call()
        assert comm.broadcast([frozen])[0] is frozen

    hocket.local_world(1).run(run)


def test_vectors_are_used_again_and_not_for_ever() -> None:
    def run(comm: hocket.Communicator) -> int:
        for n in [*range(1, 40), 39]:
            works = [comm.allreduce([x := np.ones(n)], async_op=True) for _ in range(3)]
            hocket.wait_all(works)
            assert (x == 2).all()
        return len(comm.runner._lists.spare)

    assert all(0 < n <= 16 for n in hocket.local_world(2).run(run))
