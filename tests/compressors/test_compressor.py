"""A Compressor owes what it does not send: nothing is lost, whatever the method, and whatever happens in between."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.compression import DGC, QSGD, Bucket, Coded, Compressor, Method, PowerSGD, TopK
from hocket.compression.method import Array, Averaged, MethodState
from hocket.compression.sparse.methods import largest
from hocket.errors import ArgumentError
from support.cases import more
from support.worlds import spread

EXACT = (
    "topk:0.05", "topk:0.05:64:fp16", "threshold:1:bf16", "randomk:0.1", "powersgd:2", "powersgd:2:bf16",
    "doublesqueeze:int8", "doublesqueeze:int4", "doublesqueeze:sign",
    "twobits:0.1:256", "oktopk:0.05", "oktopk:0.05:fp16", "doublesqueeze:topk:0.05",
)  # fmt: skip
"""Methods that lose nothing but what they owe: test_laws.py."""
HELPED = (*EXACT, "int8", "fp8", "int4")
METHODS = (
    *HELPED, "ef21:topk:0.1", "dgc:0.1", "dgc:0.1:fp16", "adasum", "nonzero:64", "shared:1", "shared:7:inf", "elias:4",
)  # fmt: skip
STEPS = 12


def gradient(rank: int, step: int, shape: tuple[int, ...]) -> Array:
    return _gradient(rank, step, shape).copy()


@cache
def _gradient(rank: int, step: int, shape: tuple[int, ...]) -> Array:
    """Made once, as all methods take the same."""
    return np.random.default_rng([rank, step, *shape]).standard_normal(shape).astype(np.float32)


def owed(comm: Communicator, c: Compressor, key: str) -> Array:
    """To the average, by all ranks."""
    entry = c.state_dict()["entries"][key]
    residual = comm.allreduce((entry["residual"] + entry["kept"].get("v", 0)).astype(float), "avg")
    if "owned" not in entry["kept"]:
        return residual
    owned = comm.allgather(entry["kept"]["owned"].astype(float))[: residual.size]
    return residual + owned.reshape(residual.shape)


def all_ranks_hold_the_same_bits(comm: Communicator) -> None:
    for method in METHODS:
        c = Compressor(comm, method)
        for step in range(3):
            x = c.allreduce(gradient(comm.rank, step, (40, 30)), "w", "sum")
            every = comm.allgather(x.view(np.uint32)[None])
            assert (every == every[0]).all(), method


def feedback_helps(comm: Communicator) -> None:
    """The same gradient again and again: with feedback its average comes, without it not."""
    for method in HELPED:
        right, last = np.mean([gradient(r, 0, (40, 30)) for r in range(comm.size)], 0, dtype=float), {}
        for feedback in (True, False):
            c, came = Compressor(comm, method, feedback), np.zeros((40, 30))
            for _ in range(40):
                came += c.allreduce(gradient(comm.rank, 0, (40, 30)), "w")
            last[feedback] = np.linalg.norm(came / 40 - right) / np.linalg.norm(right)
        assert last[True] < 0.4, (method, last)
        assert last[True] < 0.8 * last[False], (method, last)


def goes_on_where_it_was(comm: Communicator) -> None:
    for method in METHODS:
        first, second = Compressor(comm, method), Compressor(comm, method)
        for step in range(4):
            first.allreduce(gradient(comm.rank, step, (40, 30)), "w", lr=0.1)
        second.load_state_dict(first.state_dict())
        made = [c.allreduce(gradient(comm.rank, 9, (40, 30)), "w", lr=0.2) for c in (first, second)]
        assert np.array_equal(made[0].view(np.uint32), made[1].view(np.uint32)), method


def a_step_that_is_not_finite_changes_nothing(comm: Communicator) -> None:
    """On no rank, wherever the NaN was; and all ranks see it."""
    for method in METHODS:
        one, other = Compressor(comm, method), Compressor(comm, method)
        for step in range(3):
            for c in (one, other):
                c.allreduce(gradient(comm.rank, step, (40, 30)), "w")
            if step == 1:
                bad = gradient(comm.rank, 99, (40, 30))
                if comm.rank == comm.size - 1:
                    bad[7, 3] = (np.nan, np.inf)[comm.size % 2]
                assert np.isnan(one.allreduce(bad, "w")).all(), method
        kept, right = one.state_dict()["entries"]["w"], other.state_dict()["entries"]["w"]
        assert np.isfinite(kept["residual"]).all()
        if not method.startswith("randomk"):  # which draws others
            assert np.array_equal(kept["residual"], right["residual"]), method


def what_is_owed_decays(comm: Communicator) -> None:
    """By the factor in each call, wherever a method keeps it."""
    for method in ("topk:0.1", "doublesqueeze:sign", DGC(0.1, momentum=0.0)):
        c, right = Compressor(comm, method, decay=0.5), np.zeros(500)
        for step in range(4):
            right = 0.5 * right + np.mean([gradient(r, step, (500,)) for r in range(comm.size)], 0, dtype=float)
            right -= c.allreduce(gradient(comm.rank, step, (500,)), "w")
        np.testing.assert_allclose(owed(comm, c, "w"), right, atol=1e-5, err_msg=str(method))


def calls_that_count_together(comm: Communicator) -> None:
    """A NaN in one of a step's vectors, and all are as before; without one, as if each call stood for itself."""
    shapes = {"a": (40, 30), "b": (300,), "c": (16, 16)}
    for method in (*EXACT, "int8", "ef21:topk:0.1", "dgc:0.1", "adasum", "elias:4"):
        c, alone = Compressor(comm, method), Compressor(comm, method)
        for step in range(5):
            xs = {key: gradient(comm.rank, step, shape) for key, shape in shapes.items()}
            before, bad = c.state_dict()["entries"], step in (2, 4)
            if bad and comm.rank == step % comm.size:
                xs["b"][step] = np.nan
            with c.step():
                c.allreduce(xs["a"], "a", lr=0.1)
                c.allreduce_all([xs["b"], xs["c"]], ["b", "c"], lr=0.1)
                with pytest.raises(ArgumentError, match="'a' was used twice in this step"):
                    c.allreduce(xs["a"], "a")
                with pytest.raises(ArgumentError, match="a step of this Compressor is open"):
                    c.step()
            if bad:
                assert all(np.isnan(x).all() for x in xs.values()), method
                for key, one in c.state_dict()["entries"].items():
                    assert np.array_equal(one["residual"], before[key]["residual"]), (method, key)
                    assert all(np.array_equal(one["kept"][name], array) for name, array in before[key]["kept"].items())
            elif step < 2:
                ys = {key: gradient(comm.rank, step, shape) for key, shape in shapes.items()}
                alone.allreduce(ys["a"], "a", lr=0.1)
                alone.allreduce_all([ys["b"], ys["c"]], ["b", "c"], lr=0.1)
                assert all(np.array_equal(xs[key], ys[key]) for key in shapes), method
                assert all(c.stats(key).error == alone.stats(key).error for key in shapes), method
    one, other = (Compressor(comm, "topk:0.1", feedback=False) for _ in range(2))
    with one.step():
        for each in (one, other):
            each.allreduce(gradient(comm.rank, 0, (300,)), "a")
    assert one.stats("a").error == other.stats("a").error > 0
    assert one._entries["a"].spare is None  # no memory for what nobody will ask for
    owing = Compressor(comm, "topk:0.1")
    owing.allreduce(gradient(comm.rank, 0, (300,)), "a")
    spare = owing._entries["a"].spare
    owing.allreduce(gradient(comm.rank, 1, (300,)), "a")
    assert owing._entries["a"].residual is spare  # and no copy of what is owed
    owing.forget("a")
    assert not owing._residuals._pairs
    with pytest.raises(ZeroDivisionError), c.step():
        c.allreduce(xs["a"], "a")
        raise ZeroDivisionError
    c.allreduce(xs["a"], "a")


def a_rate_of_zero(comm: Communicator) -> None:
    """Schedules begin so: what is owed stays as it is."""
    c = Compressor(comm, "topk:0.5")
    came = [c.allreduce(np.array([2, 1], np.float32), "w", lr=lr).tolist() for lr in (0.1, 0.0, 0.1)]
    assert came == [[2, 0], [2, 0], [0, 3]] or came == [[2, 0], [0, 2], [4, 0]], came


def tensors(comm: Communicator) -> None:
    x = torch.arange(1000.0).reshape(10, 100)
    assert Compressor(comm, "topk:0.01").allreduce(x, "w", "sum") is x
    assert int((x != 0).sum()) == 10 and float(x[9, 99]) == 999 * comm.size


def wrong(comm: Communicator) -> None:
    c, x = Compressor(comm, "topk:0.5"), np.ones(10, np.float32)
    c.allreduce(x, "w")
    empty = Compressor(comm, "topk:0.5").state_dict()
    for call, text in (
        (lambda: c.allreduce(np.ones(9, np.float32), "w"), r"key 'w' was used for shape \(10,\), got \(9,\)"),
        (lambda: c.allreduce(np.ones(9), "v"), "takes contiguous, writable float32 arrays, got float64"),
        (lambda: c.allreduce(np.ones(9, np.float32)[::2], "v"), "contiguous"),
        (lambda: c.allreduce(torch.ones(9, dtype=torch.bfloat16), "v"), r"got torch.bfloat16\(9,\), torch.strided"),
        (lambda: c.allreduce(torch.ones(9).to_sparse(), "v"), "torch.sparse_coo"),
        (lambda: c.allreduce(torch.ones(9, device="meta"), "v"), "and CuPy arrays, got one on meta"),
        (lambda: c.allreduce([1.0], "v"), "NumPy arrays, torch tensors on the CPU or a GPU, and CuPy arrays, got list"),
        (lambda: c.allreduce(x, "w", "max"), "takes op 'avg' or 'sum', not 'max'"),
        (lambda: c.allreduce("w", x), r"(?s)key=array\(.* must be a string, the name of a vector"),
        (lambda: c.stats("v"), "no call has used the key 'v'; known: w"),
        (lambda: Compressor(comm, "topk"), r"'topk' is not a method .*; known: int8, fp8, int4, sign, adasum, nonzero"),
        (lambda: Compressor(comm, "topk:x"), "'x' is not a number; it is written as 'topk:0.01'"),
        (lambda: Compressor(comm, "powersdg:4"), "did you mean 'powersgd:4'"),
        (lambda: Compressor(comm, "bf16"), "needs no Compressor: pass it to the call, as codec='bf16'"),
        (lambda: Compressor(comm, None), "None is not a method; expected a name such as"),
        (lambda: Compressor(comm, TopK), "is not a method; expected a name such as"),
        (lambda: c.load_state_dict({"a": 1}), "is not a state: give what state_dict"),
        (lambda: c.load_state_dict(None), "None is not a state"),
        (lambda: Compressor(comm, "topk:0.1:fp32"), "codec='fp32': the values of pairs are float32, known: fp16, bf16"),
        (lambda: Compressor(comm, "dgc:0.1:64"), "is not NUMBER"),
        (lambda: Compressor(comm, "topk:0"), "above 0 and at most 1"),
        (lambda: Compressor(comm, "powersgd:0"), "a rank of at least 1"),
        (lambda: Compressor(comm, "powersgd:2:int8"), "'int8': PowerSGD's matrices are float32, known: fp16, bf16"),
        (lambda: Compressor(comm, "doublesqueeze:fp16"), "'fp16' is not a codec of blocks"),
        (lambda: c.load_state_dict(Compressor(comm, "int8").state_dict()), "is of 'int8', this is 'topk:0.5'"),
        (lambda: c.load_state_dict({**c.state_dict(), "size": 9}), "got 1 states of a job of 9 ranks"),
        (lambda: c.load_state_dict([c.state_dict(), *[empty] * (comm.size - 1)]), "different keys"),
    ):
        with pytest.raises(ArgumentError, match=text):
            call()  # type: ignore[no-untyped-call]
    stats = c.stats("w")
    assert (stats.calls, stats.nbytes, stats.sent) == (1, 40, 30) and 0 < stats.error < 1 and stats.seconds > 0
    c.forget("w")
    c.forget("never seen")
    assert np.count_nonzero(c.allreduce(np.ones(8, np.float32), "w")) == 4 and c.stats("w").calls == 1


def inside_a_group(comm: Communicator) -> None:
    """It would read what has not come."""
    c, x, rows = Compressor(comm, "int8"), np.ones(4, np.float32), np.ones((comm.size, 4), np.float32)
    for call, name in (
        (lambda: c.allreduce(x, "w"), "allreduce"),
        (lambda: c.allreduce_all([x], ["w"]), "allreduce_all"),
        (lambda: c.reduce_scatter(rows, "r", x), "reduce_scatter"),
        (lambda: c.allgather(x, "g", rows), "allgather"),
    ):
        with hocket.group(), pytest.raises(ArgumentError, match=rf"^{name}\(\) needs its result at once"):
            call()  # type: ignore[no-untyped-call]
    assert c.state_dict()["entries"] == {} and c.allreduce(x, "w")[0] == 1


def several_at_once(comm: Communicator) -> None:
    """Several at once are averaged as one by one, in fewer calls."""
    shapes = ((40, 30), (1000,), (1,), (64, 10), (0,))
    ends = np.cumsum([np.prod(shape) for shape in shapes])[:-1]
    for method in METHODS:
        one, all_of = Compressor(comm, method), Compressor(comm, method)
        for c in one, all_of:  # one key has had a call more than the others
            c.allreduce(gradient(comm.rank, 9, shapes[0]), str(shapes[0]), lr=0.1)
        for step in range(3):
            xs = [gradient(comm.rank, step, shape) for shape in shapes]
            ys = [x.copy() for x in xs]
            keys = [str(shape) for shape in shapes]
            if step == 1:  # a bucket: one after the other in memory
                bucket = np.concatenate([x.reshape(-1) for x in xs])
                xs = [part.reshape(x.shape) for part, x in zip(np.split(bucket, ends), xs, strict=True)]
            all_of.allreduce_all(xs, keys, lr=0.1)
            for y, key in zip(ys, keys, strict=True):
                one.allreduce(y, key, lr=0.1)
            for x, y, key in zip(xs, ys, keys, strict=True):
                if not method.startswith(("int8", "fp8", "int4", "elias", "oktopk", "doublesqueeze:topk")):  # of all
                    np.testing.assert_allclose(x, y, atol=1e-5, err_msg=f"{method} {key}")
                    assert abs(all_of.stats(key).error - one.stats(key).error) < 1e-4

    def calls() -> int:
        return sum(stat.calls for stat in comm.stats() if stat.collective == "allreduce")

    before = calls()
    Compressor(comm, "powersgd:2").allreduce_all([gradient(comm.rank, 9, (40, 30)) for _ in range(9)], [*"abcdefghi"])
    assert calls() - before == 2
    for xs, keys in (([np.ones(3, np.float32)], ["a", "b"]), ([np.ones(3, np.float32)] * 2, ["a", "a"])):
        with pytest.raises(ArgumentError, match="different keys; got"):
            all_of.allreduce_all(xs, keys)
    for rates in ([0.1, 0.2], np.array([0.1, 0.2])):
        with pytest.raises(ArgumentError, match="1 vectors need one lr, or 1; got 2"):
            all_of.allreduce_all([np.ones(3, np.float32)], ["a"], lr=rates)
        all_of.allreduce_all([np.ones(3, np.float32), np.ones(2, np.float32)], ["a", "b"], lr=rates)
        found = [all_of.state_dict()["entries"][key]["lr"] for key in "ab"]
        assert found == [0.1, 0.2] and [*map(type, found)] == [float, float]
    all_of.allreduce_all([], [])


def blocks_that_are_zero(comm: Communicator) -> None:
    """They are not sent, and nothing is lost."""
    p = comm.size
    for n, block in ((1000, 64), (64, 64), (63, 64), (0, 64), (4096, 256)):
        every = [np.zeros(n, np.float32) for _ in range(p)]
        for r, x in enumerate(every):
            x[n // 3 + r :: n // 2 + 1] = r + 1.0
        c = Compressor(comm, f"nonzero:{block}")
        x = c.allreduce(every[comm.rank].copy(), "w", "sum")
        np.testing.assert_allclose(x, np.sum(every, 0), rtol=1e-6)
        assert not c.state_dict()["entries"]["w"]["residual"].any()
    assert c.stats("w").ratio > 5


def rows_of_gradients(comm: Communicator) -> None:
    """reduce_scatter: what came to the owners and what is owed to their rows are all that was given."""
    p = comm.size
    for method in ("int8", "int4", "sign", QSGD(7)):
        c, shape = Compressor(comm, method), (p, 300)
        came, given, right = np.zeros(300), np.zeros(300), np.zeros(300)
        for step in range(STEPS):
            x, out = gradient(comm.rank, step, shape), np.empty(300, np.float32)
            kept = x.copy()
            assert c.reduce_scatter(x, "w", out, "sum", lr=0.1) is out and np.array_equal(x, kept)
            right = np.sum([gradient(r, step, shape)[comm.rank] for r in range(p)], 0, dtype=float)
            given, came = given + right, came + out
        entry = c.state_dict()["entries"]["w"]
        residual = comm.reduce_scatter(entry["residual"].astype(float).reshape(-1))
        if isinstance(method, str):
            np.testing.assert_allclose(came + residual, given, atol=1e-3, err_msg=str(method))
        else:
            assert not residual.any() and np.linalg.norm(came - given) < 0.3 * np.linalg.norm(given)
        assert c.stats("w").calls == STEPS and c.stats("w").ratio > 1
        bad = np.full(shape, np.nan if comm.rank == p - 1 else 1, np.float32)
        assert np.isnan(c.reduce_scatter(bad, "w", np.empty(300, np.float32))).all()
        assert np.array_equal(c.state_dict()["entries"]["w"]["residual"], entry["residual"])


def parameters_that_change_little(comm: Communicator) -> None:
    """allgather: the first time exact, then near and nearer; the same bits on all ranks, also from a saved state."""
    for codec in ("int8", "sign"):
        c, again, p = Compressor(comm, codec), Compressor(comm, codec), comm.size
        weights = [gradient(r, 0, (300,)) for r in range(p)]
        for step in range(8):
            if step < 4:
                weights = [w + 0.01 * gradient(r, step, (300,)) for r, w in enumerate(weights)]
            out = np.empty((p, 300), np.float32)
            out[comm.rank] = weights[comm.rank]
            c.allgather(out[comm.rank] if step % 2 else weights[comm.rank], "w", out)
            every = comm.allgather(out.view(np.uint32)[None])
            assert (every == every[0]).all()
            off = np.abs(out - np.stack(weights)).max()
            assert off == 0 if step == 0 else off < {"int8": 4e-4, "sign": 0.1}[codec], (step, off)
            if step == 5:
                again.load_state_dict(c.state_dict())
        assert off < {"int8": 1e-6, "sign": 0.03}[codec]
        assert c.stats("w").ratio > 2  # of two blocks, one nearly empty
        for _ in range(2):
            last = again.allgather(weights[comm.rank], "w", np.empty((p, 300), np.float32))
        assert np.array_equal(last, out)


def wrong_rows(comm: Communicator) -> None:
    c, p = Compressor(comm, "int8"), comm.size
    one, rows = np.ones(5, np.float32), np.ones((p, 5), np.float32)
    c.allreduce(one.copy(), "w")
    c.reduce_scatter(rows, "rows", one.copy())
    for call, text in (
        (lambda: c.reduce_scatter(np.ones((p + 1, 5), np.float32), "v", one), r"out has shape \(5,\), so x must have"),
        (lambda: c.allgather(one, "v", np.ones((p, 4), np.float32)), r"x has shape \(5,\), so out must have"),
        (lambda: c.reduce_scatter(rows, 7, one), "key=7 must be a string"),
        (lambda: c.reduce_scatter(rows, "w", one), "another kind of call"),
        (lambda: c.allreduce(rows, "rows"), "another kind of call"),
        (lambda: c.reduce_scatter(rows, "v", one, "max"), "takes op 'avg' or 'sum'"),
        (lambda: Compressor(comm, "topk:0.1").reduce_scatter(rows, "v", one), "'topk:0.1' has no reduce_scatter"),
        (lambda: Compressor(comm, "powersgd:1").allgather(one, "v", rows), "'powersgd:1' has no allgather"),
    ):
        with pytest.raises(ArgumentError, match=text):
            call()  # type: ignore[no-untyped-call]


CHECKS: tuple[Callable[[Any], None], ...] = (
    all_ranks_hold_the_same_bits, feedback_helps, goes_on_where_it_was, a_step_that_is_not_finite_changes_nothing,
    calls_that_count_together, what_is_owed_decays, a_rate_of_zero, several_at_once, tensors, wrong, inside_a_group,
    blocks_that_are_zero, rows_of_gradients, parameters_that_change_little, wrong_rows,
)  # fmt: skip


@pytest.mark.parametrize(("size", "transport"), [*more((2, "shm")), (3, "tcp")])
def test_between_ranks(size: int, transport: str) -> None:
    spread(CHECKS, size, transport)


def test_power_sgd_is_exact_for_what_has_that_rank() -> None:
    def check(comm: Communicator) -> None:
        dice = np.random.default_rng(3)
        thin = [dice.standard_normal((n, 2)).astype(np.float32) for n in (50, 60)]
        c = Compressor(comm, PowerSGD(2))
        for i in range(3):
            x = c.allreduce((comm.rank + 1) * (thin[0] @ thin[1].T), "w")
            if i:
                np.testing.assert_allclose(x, (comm.size + 1) / 2 * (thin[0] @ thin[1].T), atol=1e-3)
        nothing = c.allreduce(np.zeros((50, 60), np.float32), "w")
        assert np.abs(nothing).max() < 1e-3 and c.stats("w").ratio == 3000 / 220

    hocket.local_world(2).run(check)


def test_the_largest_of_a_long_vector_are_found_by_a_sample() -> None:
    dice = np.random.default_rng(5)
    n = 200_000
    normal = dice.standard_normal(n, np.float32)
    odd = {
        "normal": normal, "heavy": normal**9, "zeros": np.zeros(n, np.float32), "few": np.where(normal > 4, normal, 0),
        "sorted": np.sort(normal), "the sample's": np.where(np.arange(n) % (n // 4096) == 0, 9, normal),
        "none of the sample's": np.where(np.arange(n) % (n // 4096) == 0, 0, normal),
        "NaN": np.full(n, np.nan), "one NaN": np.where(np.arange(n) == 77, np.nan, normal),
    }  # fmt: skip
    for name, x in odd.items():
        for k in (1, 200, 2000, n // 3, n):
            found = largest(x.astype(np.float32), k)
            assert len(found) == k and (np.diff(found) > 0).all(), (name, k)
            np.testing.assert_array_equal(np.sort(np.abs(x[found])), np.sort(np.abs(x))[n - k :], err_msg=name)


def test_the_largest_of_each_chunk() -> None:
    x = np.array([1, -9, 2, 3, 0, 0, 4, 5, -7, 6, 1], np.float32)
    assert TopK(0.25, chunk=4).chosen(x).tolist() == [1, 7, 8]
    assert TopK(0.25, chunk=99).chosen(x).tolist() == [1, 8, 9]
    long = np.random.default_rng(1).standard_normal(100_000).astype(np.float32)
    found = TopK(0.01, chunk=1000).chosen(long)
    right = [np.sort(i + np.argsort(np.abs(long[i : i + 1000]))[-10:]) for i in range(0, len(long), 1000)]
    assert np.array_equal(found, np.concatenate(right))


@pytest.mark.parametrize("size", [2, 3, 4, 7])
def test_adaptive_sums(size: int) -> None:
    """By the paper's formula, for pairs of neighbours; at right angles the sum, of equals the mean."""

    def right(vectors: list[Array]) -> Array:
        while len(vectors) > 1:
            pairs = zip(vectors[::2], vectors[1::2], strict=False)
            made = [(1 - a @ b / (2 * a @ a)) * a + (1 - a @ b / (2 * b @ b)) * b for a, b in pairs]
            vectors = made + vectors[2 * len(made) :]
        return vectors[0]

    def check(comm: Communicator) -> None:
        shapes, p = ((50,), (7, 3), (1,), (0,)), comm.size
        xs = [gradient(comm.rank, 0, shape) for shape in shapes]
        c = Compressor(comm, "adasum")
        c.allreduce_all(xs, [*"abcd"])
        for x, shape in zip(xs[:3], shapes, strict=False):
            wanted = right([gradient(r, 0, shape).reshape(-1).astype(float) for r in range(p)])
            np.testing.assert_allclose(x.reshape(-1), wanted, atol=1e-5)
        alone = c.allreduce(np.eye(p, 20, dtype=np.float32)[comm.rank] * (comm.rank + 1), "angles")
        assert alone.tolist() == [*range(1, p + 1), *[0] * (20 - p)]
        np.testing.assert_allclose(c.allreduce(np.full(9, 2, np.float32), "equal"), 2, rtol=1e-6)
        assert not c.allreduce(np.zeros(9, np.float32), "nothing").any()
        for unit in (1e-42, 1e-38, 1e-23, 1e20, 1e38):  # whose squares are no float32
            x = np.full(9, unit, np.float32)
            np.testing.assert_allclose(c.allreduce(x.copy(), "alike"), x, rtol=1e-3)
            y = np.eye(p, 20, dtype=np.float32)[comm.rank] * np.float32(unit)
            assert c.allreduce(y, "apart").tolist() == [np.float32(unit)] * p + [0] * (20 - p)
        x = np.full(9, 1e-38 if comm.rank else 1e38, np.float32)
        np.testing.assert_allclose(c.allreduce(x, "far"), 1e38 / 2 ** math.ceil(math.log2(p)), rtol=1e-6)

    hocket.local_world(size).run(check)


@pytest.mark.parametrize("codec", ["int8", "int4", "sign"])
def test_a_codec_between_hosts(codec: str) -> None:
    """Ranks 0, 1 and 2, 3 as if on two hosts: nothing is lost but what the last encoding of a sum loses."""

    def check(comm: Communicator) -> None:
        here, across = comm.split(comm.rank // 2), comm.split(comm.rank % 2)
        comm.membership.groups = ((0, 1), (2, 3))
        for n in (0, 1, 255, 300, 5000):
            x = gradient(comm.rank, 1, (n,))
            left, result = x.copy(), np.empty_like(x)
            Coded(codec).average(comm, left, result, {}, 0)
            every = comm.allgather(result.view(np.uint32)[None])
            assert (every == every[0]).all()
            hosts = across.allgather(here.allreduce(x - left)[None])  # what each host's ranks have sent
            right = hosts.sum(0) / 4
            once = np.linalg.norm(result - right) / max(np.linalg.norm(right), 1e-9)
            assert once < {"int8": 0.02, "int4": 0.3, "sign": 1.1}[codec], (n, once)
            if codec == "int8":
                np.testing.assert_allclose(here.allreduce(left), 0, atol=0.1)

    hocket.local_world(4).run(check)


@pytest.mark.parametrize("method", ["int8", "topk:0.1", "doublesqueeze:int4", "powersgd:1"])
def test_a_bucket_is_its_arrays(method: str) -> None:
    """To the bit, in place, and whichever of the two the next call has."""
    shapes = [(3, 5), (0,), (700,), ()]
    keys = [f"key{i}" for i in range(len(shapes))]

    def check(comm: Communicator) -> None:
        apart, joined = Compressor(comm, method), Compressor(comm, method)
        for step in range(4):
            xs = [gradient(comm.rank, step, shape) for shape in shapes]
            bucket = Bucket.of(np.concatenate([x.reshape(-1) for x in xs]), shapes, keys)
            apart.allreduce_all(xs, keys, lr=0.5)
            if step == 2:
                joined.allreduce_all(bucket.parts, keys, lr=0.5)
            else:
                joined.allreduce_all(bucket, lr=0.5)
            assert all(np.array_equal(x, part) for x, part in zip(xs, bucket.parts, strict=True))
            assert np.array_equal(bucket.flat, np.concatenate([x.reshape(-1) for x in xs]))
        for key in keys:
            left = [c.state_dict()["entries"][key]["residual"] for c in (apart, joined)]
            assert np.array_equal(*left), key

    hocket.local_world(3).run(check)


@pytest.mark.parametrize("method", ["int8", "sign"])
def test_what_a_codec_has_not_sent_is_owed(method: str) -> None:
    """On one rank, whose sum is not encoded again: whichever vectors go together, at whatever rate, and with NaNs."""
    shapes = [(300,), (2, 5), (), (0,), (1000,)]

    def check(comm: Communicator) -> None:
        c, dice = Compressor(comm, method), np.random.default_rng(7)
        given, came = ([np.zeros(shape) for shape in shapes] for _ in range(2))
        for step in range(40):
            order, cut = dice.permutation(len(shapes)).tolist(), int(dice.integers(1, len(shapes)))
            xs, rate = [gradient(0, step, shape) for shape in shapes], (1.0, 0.25)[step % 3 == 0]
            own = [x.astype(float) for x in xs]
            bad = int(dice.integers(len(shapes))) if step % 4 == 1 else None
            if bad is not None:
                xs[bad][...] = np.nan
            for which in (sorted(order[:cut]), sorted(order[cut:])):
                keys = [str(k) for k in which]
                if step % 2:
                    c.allreduce_all([xs[k] for k in which], keys, lr=rate)
                else:
                    flat = np.concatenate([xs[k].reshape(-1) for k in which])
                    bucket = Bucket.of(flat, [shapes[k] for k in which], keys)
                    c.allreduce_all(bucket, lr=rate)
                    for k, part in zip(which, bucket.parts, strict=True):
                        xs[k] = part
            for k, x in enumerate(xs):
                if np.isfinite(x).all():
                    given[k] += rate * own[k]
                    came[k] += rate * x
                else:
                    assert np.isnan(x).all() and bad is not None
        for k, (entry, rate) in enumerate((e, e["lr"]) for _, e in sorted(c.state_dict()["entries"].items())):
            np.testing.assert_allclose(came[k] + rate * entry["residual"], given[k], atol=1e-3)

    hocket.local_world(1).run(check)


@pytest.mark.parametrize("method", ["int8", "doublesqueeze:int8"])
def test_a_state_as_it_always_was_saved(method: str) -> None:
    """The debt comes: to this rank's vector, and to the part of the sum that it owns, in whole blocks of 256."""
    dice, n = np.random.default_rng(3), 600
    residuals = dice.standard_normal((2, n)).astype(np.float32)
    owned = dice.standard_normal(1024).astype(np.float32)
    owned[n:] = 0
    kepts: list[dict[str, Array]] = [{}, {}] if method == "int8" else [{"owned": part} for part in np.split(owned, 2)]
    states = [
        {"method": method, "size": 2, "entries": {"w": {
            "shape": [n], "residual": residual, "lr": None, "steps": 4, "kept": kept, "sharded": False
        }}} for residual, kept in zip(residuals, kepts, strict=True)
    ]  # fmt: skip

    def check(comm: Communicator) -> None:
        c = Compressor(comm, method)
        c.load_state_dict(states[comm.rank])
        came = sum(c.allreduce(np.zeros(n, np.float32), "w").astype(float) for _ in range(6))
        right = residuals.mean(0) + (owned[:n] if kepts[0] else 0)
        np.testing.assert_allclose(came, right, atol=0.02 if method == "int8" else 1e-6)
        entry = c.state_dict()["entries"]["w"]
        assert entry["residual"].shape == (n,) and all(kept.shape == (512,) for kept in entry["kept"].values())

    hocket.local_world(2).run(check)


def test_a_method_of_ones_own() -> None:
    class Half(Method):
        """Everything, rounded to fp16 by this rank."""

        name = "half"

        def average(self, comm: Any, vector: Array, result: Array, kept: MethodState, seed: int) -> Averaged:
            sent = vector.astype(np.float16).astype(np.float32)
            comm.allreduce(sent, "avg", result)
            vector -= sent
            return Averaged(kept, vector.nbytes // 2)

    def check(comm: Communicator) -> None:
        c = Compressor(comm, Half())
        assert abs(c.allreduce(np.full(3, 0.1, np.float32), "w")[0] - 0.1) < 1e-4 and c.stats("w").ratio == 2

    hocket.local_world(2).run(check)
