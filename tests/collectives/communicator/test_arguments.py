"""Every public function with every kind of junk: a `hocket.Error` that names the argument, and the job goes on."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import hocket
from hocket.collectives.communicator.communicator import Communicator

Call = Callable[[Communicator, Any], Any]


class Odd:
    """Not a number, not a name, not an array; and cannot be a key."""

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "an odd thing"


X = np.arange(4.0)
CLOSED = memoryview(bytearray(8))
CLOSED.release()
ARRAYS = (None, 3, 2.5, True, "text", [1.0, 2.0], (), {}, Odd(), Odd, print, CLOSED, np.array([None]), object())
NOTHING = tuple(each for each in ARRAYS if not isinstance(each, (int, float)))
"""Where a number would do, too."""
FULL = tuple(each for each in NOTHING if not isinstance(each, (tuple, dict)))
"""Where a list of arrays would do, too, and so one of no array."""
NUMBERS = ("1", 1.0, 2.5, [1], None, Odd(), np.array([0.5]), math.nan, 1j)
WHOLES = (3, 1.0, "12", [1.9, 2.1], [1, "1"], [[2, 2]], None, Odd(), np.array([1.0, 3.0]), [-1, 5], [1 << 80, 0], [4])
RANKS = (*NUMBERS, -1, 2, 1 << 80)
NAMES = (3, 2.5, ["ring"], Odd(), b"ring", "nonsense", True)
TIMES = ("x", "3", 0, -1.0, math.nan, [3], Odd(), 1j, np.arange(2.0))
OPS = ("summ", "", 3, None, ["sum"], Odd(), True, b"sum")

METHODS: dict[str, tuple[Call, tuple[Any, ...], str]] = {
    **{
        f"{name} of x": (lambda c, junk, name=name: getattr(c, name)(junk), NOTHING, "x")  # type: ignore[misc]
        for name in ("reduce", "scan", "exscan", "allgather", "gather")
    },
    **{
        f"{name} of x": (lambda c, junk, name=name: getattr(c, name)(junk), FULL, "x")  # type: ignore[misc]
        for name in ("allreduce", "broadcast")
    },
    **{
        f"{name} of x": (lambda c, junk, name=name: getattr(c, name)(junk), ARRAYS, "x")  # type: ignore[misc]
        for name in ("reduce_scatter", "alltoall", "register")
    },
    **{
        f"{name} into out": (lambda c, junk, name=name: getattr(c, name)(X.copy(), out=junk), ARRAYS[1:], "out")  # type: ignore[misc]
        for name in ("allreduce", "reduce_scatter", "scan", "exscan", "allgather", "alltoall")
    },
    **{
        f"{name} with op": (lambda c, junk, name=name: getattr(c, name)(X.copy(), op=junk), OPS, "op")  # type: ignore[misc]
        for name in ("allreduce", "reduce", "reduce_scatter", "scan", "exscan")
    },
    **{
        f"{name} with root": (lambda c, junk, name=name: getattr(c, name)(X.copy(), root=junk), RANKS, "root")  # type: ignore[misc]
        for name in ("broadcast", "reduce", "gather", "scatter")
    },
    **{
        f"{name} with counts": (lambda c, junk, name=name: getattr(c, name)(X, junk), WHOLES, "counts")  # type: ignore[misc]
        for name in ("reduce_scatterv", "allgatherv", "gatherv", "scatterv")
    },
    "alltoallv with send_counts": (lambda c, junk: c.alltoallv(X, junk, [2, 2]), WHOLES, "send_counts"),
    "alltoallv with recv_counts": (lambda c, junk: c.alltoallv(X, [2, 2], junk), WHOLES, "recv_counts|both are"),
    **{
        f"timeout of {name}": (lambda c, junk, name=name: call_of(c, name, timeout=junk), TIMES, "timeout")  # type: ignore[misc]
        for name in ("allreduce", "broadcast", "alltoall", "barrier", "send", "recv", "sendrecv", "create_group")
    },
    **{
        f"transport of {name}": (lambda c, junk, name=name: call_of(c, name, transport=junk), NAMES, "transport")  # type: ignore[misc]
        for name in ("allreduce", "barrier", "send", "recv")
    },
    "algorithm": (lambda c, junk: c.allreduce(X.copy(), algorithm=junk), NAMES, "algorithm"),
    "order": (lambda c, junk: c.allreduce(X.copy(), order=junk), (*NAMES, None), "order"),
    "send of x": (lambda c, junk: c.send(junk, 1 - c.rank), ARRAYS, "x"),
    "recv into out": (lambda c, junk: c.recv(junk, 1 - c.rank), ARRAYS, "out"),
    "send to dest": (lambda c, junk: c.send(X, junk), RANKS, "dest"),
    "recv from source": (lambda c, junk: c.recv(X.copy(), junk), [r for r in RANKS if r is not None], "source"),
    "tag": (lambda c, junk: c.send(X, 1 - c.rank, junk), (*NUMBERS, -1, 1 << 31, 1 << 80), "tag"),
    "tag of recv": (
        lambda c, junk: c.recv(X.copy(), 1 - c.rank, tag=junk), [n for n in NUMBERS if n is not None], "tag"
    ),
    "tag of sendrecv": (lambda c, junk: c.sendrecv(X, 1 - c.rank, X.copy(), 1 - c.rank, junk), NUMBERS, "tag"),
    "color": (lambda c, junk: c.split(junk), [n for n in NUMBERS if n is not None], "color"),
    "key": (lambda c, junk: c.split(0, junk), NUMBERS, "key"),
    "subgroup": (lambda c, junk: c.subgroup(junk), (3, "01", None, [0, 2], [0.0], [0, 0], Odd(), [[0]]), "ranks"),
    "group's ranks": (lambda c, junk: c.create_group(junk, "g"), (3, "01", None, [0, 2], [0.0], [1, 1], []), "ranks"),
    "group's name": (lambda c, junk: c.create_group([0, 1], junk), (None, 3, ["g"], Odd()), "name"),
    "tune collectives": (lambda c, junk: c.tune(junk), (3, "allreduce", [3], ["allsum"], Odd()), "collectives|allsum"),
    "tune sizes": (lambda c, junk: c.tune(["allreduce"], junk), (3, "8", [0], [1.5], [-1], ["8"], Odd()), "sizes"),
    "tune seconds": (lambda c, junk: c.tune(["allreduce"], [8], junk), (*TIMES, None), "seconds"),
    "explain": (lambda c, junk: c.explain(junk), (3, "allsum", ["allreduce"], Odd(), ""), "collective"),
    "explain nbytes": (lambda c, junk: c.explain("allreduce", junk), ("8", 1.5, -1, [8], Odd()), "nbytes"),
    "set_timeout": (lambda c, junk: c.set_timeout(junk), (*TIMES, None), "seconds"),
    "empty's shape": (lambda c, junk: hocket.empty(junk), (-1, (2, -1), "x", 1.5, None, [[1]], Odd()), "shape"),
    "empty's size": (lambda c, junk: hocket.empty(junk), (1 << 45, 1 << 62, 1 << 80, (1 << 40, 1 << 40)), "bytes"),
    "empty's dtype": (lambda c, junk: hocket.empty(3, junk), ("flot32", Odd(), "x,,", object, [3], 7), "dtype"),
    "empty's like": (lambda c, junk: hocket.empty(3, like=junk), (3, "x", [1.0], Odd()), "like"),
    "empty's comm": (lambda c, junk: hocket.empty(3, comm=junk), (0, "x", Odd(), Communicator), "comm"),
    "zeros": (lambda c, junk: hocket.zeros(junk), (-1, "x", None, 1 << 62), "shape"),
    "stream": (lambda c, junk: hocket.on_stream(junk).__enter__(), ("x", -1, 1.5, None, Odd()), "on_stream"),
}  # fmt: skip

ALONE: dict[str, tuple[Callable[[Any], Any], tuple[Any, ...], str]] = {
    "local_world": (hocket.local_world, (0, -1, "2", 1.5, None, [2], Odd()), "size|local_world"),
    "premul_sum": (hocket.premul_sum, ("x", None, [2.0], Odd(), 1j), "factor"),
    "expression": (hocket.expression, (None, 3, ["a"], Odd()), "text"),
    "local_world's transport": (lambda junk: hocket.local_world(2, junk), NAMES, "transport"),
    "show": (lambda junk: hocket.show(junk), (*NAMES, None), "algorithm"),
    "show's collective": (lambda junk: hocket.show("ring", junk), (*NAMES, None), "collective"),
    "show's size": (lambda junk: hocket.show("ring", size=junk), (0, -1, *NUMBERS), "size"),
    "show's root": (lambda junk: hocket.show("ring", root=junk), (4, -1, *NUMBERS), "root"),
    "init's rank": (lambda junk: hocket.init(junk, 2), (*NUMBERS, -1, 2), "rank"),
    "init's size": (lambda junk: hocket.init(0, junk), (*NUMBERS, -1, 0), "size"),
    "init's address": (lambda junk: hocket.init(0, 2, junk), ("x", 3, ["unix:/x"], Odd()), "address"),
    "init's transport": (lambda junk: hocket.init(transport=junk), NAMES, "transport"),
    "init's timeout": (lambda junk: hocket.init(timeout=junk), TIMES, "timeout"),
    "init's auth": (lambda junk: hocket.init(auth=junk), (None, 3, "nonsense", Odd()), "auth"),
    "from_mpi": (hocket.from_mpi, (None, 3, "x", Odd()), "comm"),
}


def call_of(c: Communicator, name: str, **words: Any) -> Any:
    other = 1 - c.rank
    positional = {
        "barrier": (), "send": (X, other), "recv": (X.copy(), other), "sendrecv": (X, other, X.copy(), other),
        "create_group": ([0, 1], "g"),
    }.get(name, (X.copy(),))  # fmt: skip
    return getattr(c, name)(*positional, **words)


def refused(call: Callable[[], Any], named: str) -> str:
    """"", or what is wrong with how it was refused."""
    try:
        got = call()
    except hocket.Error as error:
        return "" if re.search(named, str(error)) else f"does not name {named}: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return f"returned {got!r}"


@pytest.mark.parametrize("name", METHODS)
def test_junk(name: str) -> None:
    """One rank errs and is told; then both call as they should."""
    call, junk, named = METHODS[name]

    def program(comm: Communicator) -> list[str]:
        said = []
        if comm.rank == 0:
            found = {repr(each): refused(lambda each=each: call(comm, each), named) for each in junk}  # type: ignore[misc]
            said = [f"{name} = {each} {why}" for each, why in found.items() if why]
        assert comm.allreduce(np.ones(3), timeout=60).tolist() == [2.0] * 3
        return said

    with hocket.local_world(2) as world:
        said = world.run(program)[0]
    assert not said, "\n".join(said)


@pytest.mark.parametrize("name", ALONE)
def test_junk_without_a_communicator(name: str) -> None:
    call, junk, named = ALONE[name]
    found = {repr(each): refused(lambda each=each: call(each), named) for each in junk}  # type: ignore[misc]
    said = [f"{name} = {each} {why}" for each, why in found.items() if why]
    assert not said, "\n".join(said)


def test_integers_of_any_kind() -> None:
    """NumPy's and torch's integers are such, and True is 1, for every rank alike."""

    def program(comm: Communicator) -> None:
        one: Any = [True, np.int64(1)][comm.rank]
        for made in (comm.split(one, np.int8(comm.rank)), comm.split(torch.tensor(4)), comm.subgroup(np.arange(2))):
            assert made is not None and (made.rank, made.size) == (comm.rank, 2)
            assert made.allreduce(np.ones(2))[0] == 2
        assert comm.broadcast(np.full(2, comm.rank), root=one).tolist() == [1, 1]
        assert comm.broadcast(np.full(2, comm.rank), root=np.uint8(1)).tolist() == [1, 1]
        other, out = np.int16(1 - comm.rank), np.zeros(2)
        comm.sendrecv(np.full(2, comm.rank), other, out.view(np.int64), other, tag=one)
        assert out.view(np.int64)[0] == other
        rows = np.full(1 + comm.rank, comm.rank)
        for counts in ((1, 2), np.array([1, 2]), torch.tensor([1, 2]), [np.int8(1), True + True]):
            assert comm.allgatherv(rows, counts).tolist() == [0, 1, 1]  # type: ignore[arg-type]
        assert hocket.empty(np.int64(3)).shape == hocket.empty(np.array([3])).shape == (3,)  # type: ignore[arg-type]
        assert all(hocket.empty(n, np.int8).ctypes.data % 64 == 0 for n in (1, 100, 5000))  # for TensorFlow

    with hocket.local_world(2) as world:
        world.run(program)


def test_limits_without_end() -> None:
    def program(comm: Communicator) -> None:
        for limit in (math.inf, 1e300, np.float32(5), 5):
            assert comm.allreduce(np.ones(2), timeout=limit)[0] == 2
            out = np.empty(1)
            comm.sendrecv(np.array([comm.rank]) * 1.0, 1 - comm.rank, out, 1 - comm.rank, timeout=limit)
            comm.set_timeout(limit)
            assert comm.allreduce(np.ones(3))[0] == 2 and out[0] == 1 - comm.rank

    with hocket.local_world(2) as world:
        world.run(program)


def test_what_does_not_fit_is_a_memory_error_too() -> None:
    def program(comm: Communicator) -> None:
        with pytest.raises(MemoryError, match="takes 4611686018427387904 bytes") as caught:
            hocket.empty(1 << 60)
        assert isinstance(caught.value, hocket.Error)
        with pytest.raises(MemoryError, match="the result has shape"):
            comm.allgatherv(np.ones(1), [1, 1 << 60] if comm.rank == 0 else [1 << 60, 1])

    with hocket.local_world(2) as world:
        world.run(program)


WORDS = {
    "a NumPy scalar": (lambda c: c.recv(np.float32(3), 1 - c.rank),
                       r"out .*is a NumPy scalar.*numpy.array\(\[x\], 'float32'\)"),
    "an int": (lambda c: c.send(3, 1 - c.rank), "x is an int: pass a NumPy array"),
    "a float": (lambda c: c.register(2.5), "x is a float: pass a NumPy array"),
    "None": (lambda c: c.send(None, 1 - c.rank), "x is None: pass a NumPy array"),
    "counts that are no counts": (lambda c: c.allgatherv(X, None), "counts=None must be row counts"),
    "receive counts left out": (lambda c: c.alltoallv(X, [1, 3], None), "recv_counts=None must be row counts"),
    "op": (lambda c: c.allreduce(X, "summ"), "known: sum, prod, min, max, avg, .*; did you mean 'sum'"),
    "mean": (lambda c: c.allreduce(X, "mean"), "did you mean 'avg'"),
    "a word for an op": (lambda c: c.allreduce(X, "products"), "did you mean 'prod'"),
    "algorithm": (lambda c: c.allreduce(X, algorithm="rings"), "known: .*; did you mean 'ring'"),
    "collective": (lambda c: c.explain("allredue"), "did you mean 'allreduce'"),
    "transport": (lambda c: c.allreduce(X, transport="thread"), "'thread' is not known.*'threads'"),
    "dtype": (lambda c: hocket.empty(3, "flot32"), "did you mean 'float32'"),
    "an algorithm of another collective": (
        lambda c: c.allreduce(X, algorithm=hocket.algorithms.get("broadcast", "chain")), "is for broadcast"),
}  # fmt: skip


@pytest.mark.parametrize("name", WORDS)
def test_words(name: str) -> None:
    call, text = WORDS[name]

    def program(comm: Communicator) -> None:
        with pytest.raises(hocket.ArgumentError, match=text):
            call(comm)

    with hocket.local_world(2) as world:
        world.run(program)
