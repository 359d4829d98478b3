"""The scheduler: averages are right, late or left out; errors name the tensor.  Orders, deaths: test_orders.py."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.compression import Compressor
from hocket.errors import ArgumentError, Error, MismatchError, PeerLostError, TimeoutError
from hocket.training import Scheduler
from hocket.training.overlap.arrays import finite as is_finite
from hocket.training.overlap.declared import Declared
from support.cases import more
from support.gradients import SIZES, averages, gradients, raised
from support.worlds import Program, same, spread


def declared(comm: Communicator, **options: Any) -> Scheduler:
    s = Scheduler(comm, **options)
    for name, n in SIZES.items():
        s.declare(name, np.empty(n, np.float32))
    return s


# ----------------------------------------------------------------------------------------------- right sums


def all_settings(comm: Communicator) -> None:
    for order, lanes, slice, fuse in (
        ("fifo", 4, None, 0), ("priority", 20, "auto", "auto"), ("tic", 2, 4096, 2048), ("tic", 3, None, 4096),
        (["layer7", "layer3"], 3, 65536, 0), ("priority", 3, 4096, 2048),
    ):  # fmt: skip
        s = declared(comm, order=order, lanes=lanes, slice=slice, fuse=fuse, credit=lanes)
        for step in range(4):
            grads = gradients(comm, step)
            for name in reversed(grads):
                s.ready(name, grads[name])
            assert s.step() == []
            wanted = averages(comm, step)
            for name in grads:
                assert s.wait(name) is grads[name]
                same(grads[name], wanted[name], f"{order}, step {step}, {name}")
        rows = s.report()
        assert [row.name for row in rows] == list(SIZES) and {row.ranks for row in rows} == {comm.size}
        assert all(row.bytes == 4 * SIZES[row.name] and row.exposed >= 0 for row in rows)


@pytest.mark.parametrize(("size", "transport"), [(1, "threads"), (4, "tcp"), *more((2, "shm"))])
def test_all_settings_average(size: int, transport: str) -> None:
    spread(all_settings, size, transport)


def test_credit_is_each_class_own() -> None:
    """So many lanes of its priority, to which its tensors are dealt in turns."""

    def program(comm: Communicator) -> list[Any]:
        s = Scheduler(comm, lanes=2, slice=None, fuse=0, credit=3)
        for i in range(12):
            s.declare(f"{i}", np.empty(1000, np.float32))
        s.seal()
        assert isinstance(s._policy, Declared)
        found = [
            (lane.carrier.comm.membership.priority, [unit.tensors[0] for unit in lane.units])
            for lane in s._policy._lanes
        ]
        s.close()
        return found

    urgent, other = ([(1, [5, 2]), (1, [4, 1]), (1, [3, 0])], [(0, [11, 8]), (0, [10, 7]), (0, [9, 6])])
    assert hocket.local_world(2).run(program)[0] == urgent + other


def other_dtypes(comm: Communicator) -> None:
    s = Scheduler(comm, lanes=2)
    like = {"half": np.float16, "double": np.float64, "single": np.float32}
    for name, dtype in like.items():
        s.declare(name, np.empty((2, 3), dtype))
    strided = np.full((3, 2), comm.rank + 1, np.float64).T  # not contiguous
    grads = {name: strided if name == "double" else np.full((2, 3), comm.rank + 1, d) for name, d in like.items()}
    for name, grad in grads.items():
        s.ready(name, grad)
    s.step()
    for name, dtype in like.items():
        same(s.wait(name), np.full((2, 3), (comm.size + 1) / 2, dtype), name)


def with_codecs(comm: Communicator) -> None:
    for codec, tolerance in (("bf16", 0.01), ("int8", 0.03)):
        s = declared(comm, codec=codec)
        grads = gradients(comm, 1)
        for name, grad in grads.items():
            s.ready(name, grad)
        s.step()
        for name, wanted in averages(comm, 1).items():
            assert np.allclose(s.wait(name), wanted, atol=tolerance * (np.abs(wanted).max(initial=0.0) + 1)), name


def with_compressors(comm: Communicator) -> None:
    """The result is that of a Compressor on one lane, bit for bit; what is owed travels on, also through a checkpoint.
    """
    for method in ("int8", "topk:0.1", "powersgd:2"):
        alone = Compressor(comm.dup(), method)
        s = declared(comm, compressor=method, lanes=1, fuse=0, slice=None)
        for step in range(3):
            if step == 2:
                kept = s.state_dict()
                s = declared(comm, compressor=method, lanes=1, fuse=0, slice=None)
                s.load_state_dict(kept)
            grads, wanted = gradients(comm, step), gradients(comm, step)
            for name in reversed(grads):
                s.ready(name, grads[name])
                if grads[name].size:
                    alone.allreduce(wanted[name], name)
            s.step()
            for name in grads:
                same(s.wait(name), wanted[name], f"{method}, step {step}, {name}")
    s = declared(comm, compressor="int8", slice=65536, lanes=3)
    before = s.state_dict()
    for step in range(2):
        grads = gradients(comm, step)
        for name, grad in grads.items():
            s.ready(name, grad)
        s.step()
        for name, wanted_ in averages(comm, step).items():  # a bucket's scale is that of its largest
            assert np.allclose(s.wait(name), wanted_, atol=2.0), name
    kept = s.state_dict()["compressors"]
    assert any(each["entries"] for each in kept)
    s.load_state_dict(before)
    assert not any(each["entries"] for each in s.state_dict()["compressors"]), "nothing was owed before the first step"
    for order in ("priority", "agreed"):
        s = Scheduler(comm, order=order, compressor="int8")
        s.load_state_dict({"kind": "scheduler/1", "size": comm.size, "compressors": kept})
        assert s.state_dict()["compressors"] == kept, "what was loaded is not lost before the first step"


def states_of_whole_steps(comm: Communicator) -> None:
    """A state has what is under way, if it is read before the averages were waited for."""
    for order in ("priority", "agreed"):
        s = Scheduler(comm, order=order, compressor="topk:0.001")
        grads = {str(i): np.random.default_rng(i).normal(size=300_000).astype("f") for i in range(4)}
        for name, grad in grads.items() if order == "priority" else ():
            s.declare(name, grad)
        for name, grad in grads.items():
            s.ready(name, grad)
        s.step()
        early = s.state_dict()
        for name in grads:
            s.wait(name)
        assert str(early) == str(s.state_dict()), order
        assert sum(len(each["entries"]) for each in early["compressors"]) == len(grads)
        s.close()


def with_matrices(comm: Communicator) -> None:
    """A compressor gets tensors whole and in their shapes, whatever travels together, and so do methods of matrices."""
    shapes = {"wide": (40, 60), "row": (7,), "deep": (30, 5, 4)}
    cases: dict[str, dict[str, Any]] = {
        "priority": {"lanes": 1, "slice": 1024, "fuse": 0}, "agreed": {}, "fifo": {"fuse": 1 << 20}
    }  # fmt: skip
    for order, options in cases.items():
        method = "powersgd:2"
        alone, s = Compressor(comm.dup(), method), Scheduler(comm, order=order, compressor=method, **options)
        for name, shape in shapes.items() if order != "agreed" else ():
            s.declare(name, np.empty(shape, np.float32))
        for step in range(3):
            dice = np.random.default_rng((step, comm.rank))
            grads = {name: dice.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
            wanted = {name: grad.copy() for name, grad in grads.items()}
            for name in reversed(grads):
                s.ready(name, grads[name])
                alone.allreduce(wanted[name], name)
            s.step()
            for name in grads:
                assert np.allclose(s.wait(name), wanted[name], atol=1e-4), (order, step, name)
                assert np.linalg.matrix_rank(grads[name].reshape(len(grads[name]), -1), 1e-3) <= 2, (order, name)
        s.close()


def with_nothing_lost(comm: Communicator) -> None:
    """A step in which no rank has the tensor sends what is owed: the next average gets it."""
    s, x = Scheduler(comm, compressor="topk:0.5"), np.array([8, 1, 4, 2], np.float32)
    s.declare("x", x)
    total = np.zeros(4, np.float32)
    for given in (x, None, None, np.zeros(4, np.float32), np.zeros(4, np.float32)):
        if given is not None:
            s.ready("x", given.copy())
        assert s.step() == ([] if given is not None else ["x"])
        average = s.wait("x", timeout=5)
        assert (average is None) == (given is None)
        total += 0 if average is None else average
    same(total, x, "all of it came")


def test_dtypes_and_codecs() -> None:
    programs = [other_dtypes, with_codecs, with_compressors, states_of_whole_steps, with_matrices, with_nothing_lost]
    spread(programs, 2, "tcp")


# ---------------------------------------------------------------------------------------- late, and left out


def late(comm: Communicator) -> None:
    """Some names are made ready on rank 0 alone, some nowhere."""
    s = declared(comm, lanes=3, slice=4096)
    for step in range(3):
        grads = gradients(comm, step)
        alone, nowhere = ["layer3", "layer7"], ["layer0", "layer5"]
        for name in grads:
            if name not in nowhere and (comm.rank == 0 or name not in alone):
                s.ready(name, grads[name])
        assert s.step() == [name for name in SIZES if name in nowhere or name in alone and comm.rank]
        full, one = averages(comm, step), averages(comm, step, ranks=1)
        for name in SIZES:
            if step == 1 and name in nowhere:
                continue  # nobody asks
            got = s.wait(name)
            if name in nowhere:
                assert got is None
            else:
                same(got, (one if name in alone else full)[name], name)
        ranks = {row.name: row.ranks for row in s.report()}
        assert ranks == {n: 0 if n in nowhere else 1 if n in alone else comm.size for n in SIZES}


def late_while_recorded(comm: Communicator) -> None:
    """The step that is recorded is dealt again before its averages are waited for."""
    s = declared(comm, order="tic")
    for step in range(4):
        grads, wanted = gradients(comm, step), averages(comm, step)
        for name in grads:
            if name != "layer5":
                s.ready(name, grads[name])
        s.step()
        for name in SIZES:
            got = s.wait(name)
            if name == "layer5":
                assert got is None
            else:
                same(got, wanted[name], name)


@pytest.mark.parametrize(("size", "transport"), [*more((2, "shm")), (4, "tcp")])
def test_what_is_not_ready_counts_as_zeros(size: int, transport: str) -> None:
    spread([late, late_while_recorded], size, transport)


def wait_in_another_thread(comm: Communicator) -> None:
    s = declared(comm)
    grads = gradients(comm, 0)
    for name in ("layer7", "layer8"):
        s.ready(name, grads[name])
    got: list[Any] = []
    waiter = threading.Thread(target=lambda: got.append(s.wait("layer0", timeout=20)))
    waiter.start()
    for name in reversed(list(SIZES)[:7]):
        s.ready(name, grads[name])
    waiter.join()
    same(got[0], averages(comm, 0)["layer0"], "layer0")
    s.step()
    for name in list(SIZES)[1:]:
        s.wait(name)


def test_a_wait_with_a_timeout_may_come_first() -> None:
    spread(wait_in_another_thread, 2, "shm")


# ------------------------------------------------------------------------------------------------ bad input


def bad(comm: Communicator, wrong: Callable[[Scheduler, dict[str, Any]], object], name: str) -> None:
    """Rank 0 does something wrong in the second step: it hears so at once, the others when they need it."""
    s, grads = declared(comm.dup()), gradients(comm, 0)
    for each in reversed(grads):
        s.ready(each, grads[each])
    s.step()
    for each in grads:
        s.wait(each)
    if comm.rank == 0:
        assert name in raised(lambda: wrong(s, grads), ArgumentError)
        return

    def second() -> None:
        for each in reversed(grads):
            s.ready(each, grads[each])
        for each in grads:
            s.wait(each)

    text = raised(second, PeerLostError)
    assert name in text and "rank 0" in text, text


def bad_input(comm: Communicator) -> None:
    bad(comm, lambda s, grads: s.ready("layer77", grads["layer7"]), "'layer77' was not declared")
    bad(comm, lambda s, grads: s.declare("layer77", grads["layer7"]), "declare('layer77') comes too late")
    bad(comm, lambda s, grads: s.ready("layer7", grads["layer4"]), "ready('layer7'): declared as float32(300000,)")
    bad(comm, lambda s, grads: s.ready("layer7", grads["layer7"].astype(np.float64)), "got float64(300000,)")
    bad(comm, lambda s, grads: s.ready("layer7", [1.0]), "got a list")
    bad(comm, lambda s, grads: [s.ready("layer7", grads["layer7"]) for _ in range(2)], "'layer7') was called twice")
    bad(comm, lambda s, grads: s.wait("layer7"), "wait('layer7') was called before ready('layer7'), or twice")


def unwaited(comm: Communicator) -> None:
    s = Scheduler(comm.dup())
    s.declare("a", np.empty(2, np.float32))
    s.ready("a", np.ones(2, np.float32))
    s.step()
    comm.barrier()
    text = raised(lambda: s.ready("a", np.ones(2, np.float32)), (ArgumentError, PeerLostError))
    assert "ready('a'): call wait('a') for its last average first" in text, text
    t = Scheduler(comm.dup())
    t.declare("a", np.empty(2, np.float32))
    t.ready("a", np.ones(2, np.float32))
    t.step()
    comm.barrier()
    assert "step(): call wait('a') for its last average first" in raised(t.step, (ArgumentError, PeerLostError))


def bad_declarations(comm: Communicator) -> None:
    one = np.empty(2, np.float32)
    s = Scheduler(comm.dup())
    s.declare("twice", one)
    if comm.rank == 0:
        assert "declare('twice'): a name must be declared once" in raised(lambda: s.declare("twice", one), Error)
    else:
        assert "twice" in raised(lambda: s.ready("twice", one), PeerLostError)
    for value in (np.empty(2, np.int64), [1.0], None):
        assert "declare('x'): expected a string, and an array of floats" in raised(
            lambda value=value: Scheduler(comm.dup()).declare("x", value), ArgumentError  # type: ignore[misc]
        )
    fixed = np.broadcast_to(np.float32(1), 3)
    for order in ("fifo", "agreed"):  # where the average could not be put
        s = Scheduler(comm.dup(), order=order)
        s.declare("x", fixed)
        assert "the array is read-only" in raised(lambda s=s: s.ready("x", fixed), ArgumentError)  # type: ignore[misc]
        s = Scheduler(comm.dup(), order=order)
        text = raised(lambda s=s: s.declare("x", fixed.sum()), ArgumentError)  # type: ignore[misc]
        assert "got float32, which is a number: np.asarray makes an array of it" in text, text


def other_declarations(comm: Communicator) -> None:
    def differing(name: str, shape: tuple[int, ...], more: bool = False, lanes: int = 4) -> str:
        s = Scheduler(comm, lanes=lanes)
        s.declare("same", np.empty(1, np.float32))
        s.declare(name, np.empty(shape, np.float32))
        if more:
            s.declare("more", np.empty(1, np.float32))
        return raised(lambda: s.ready("same", np.ones(1, np.float32)), MismatchError)

    odd = comm.rank == 1
    assert "rank 1 declared 'b', float32(2,) as tensor 1, rank 0 'a', float32(2,)" in differing("ab"[odd], (2,))
    assert "rank 1 declared 'a', float32(3,) as tensor 1, rank 0 'a', float32(2,)" in differing("a", (2 + odd,))
    assert "rank 1 declared 'more', float32(1,) as tensor 2, rank 0 nothing more" in differing("a", (2,), more=odd)
    assert "rank 1 has order='priority', lanes=5" in differing("a", (2,), lanes=4 + odd)


def not_finite(comm: Communicator) -> None:
    for value in (np.nan, np.inf):
        s, grads = declared(comm), gradients(comm, 0)
        if comm.rank == 1:
            grads["layer4"][77] = value
        for name in reversed(grads):
            s.ready(name, grads[name])
        s.step()
        text = raised(lambda s=s: s.wait("layer4"), ArgumentError)  # type: ignore[misc]
        assert "wait('layer4'): the average holds a NaN or an infinity" in text, text
        wanted = averages(comm, 0)
        for name in set(SIZES) - {"layer4"}:
            same(s.wait(name), wanted[name], name)
    s, x = Scheduler(comm, finite=False), np.full(3, np.nan, np.float32)
    s.declare("x", x)
    s.ready("x", x)
    assert np.isnan(s.wait("x")).all()
    s.step()
    s = Scheduler(comm)
    s.declare("x", np.empty(4, np.float32))
    s.ready("x", np.full(4, 1.5e38, np.float32))  # whose sum is not finite
    with np.errstate(over="ignore"):
        s.wait("x")


def too_late(comm: Communicator) -> None:
    s = declared(comm, lanes=1, fuse=0)
    s.ready("layer5", np.ones(SIZES["layer5"], np.float32))
    text = raised(lambda: s.wait("layer5", timeout=0.1), TimeoutError)
    assert "these are not ready on this rank: layer8, layer7, layer6" in text, text
    text = raised(lambda: s.wait("layer6", timeout=0.1), TimeoutError)
    s.step()
    s.wait("layer5")


@pytest.mark.parametrize(
    "program", [bad_input, bad_declarations, other_declarations, not_finite, too_late, unwaited],
    ids=lambda p: p.__name__,
)
def test_bad_input(program: Program) -> None:
    spread(program, 2, "threads")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"order": "prio"}, "did you mean 'priority'"),
        ({"lanes": 0}, "lanes=0"),
        ({"lanes": 1.5}, "lanes=1.5 must be a whole number"),
        ({"slice": -1}, "slice=-1"),
        ({"fuse": -1}, "fuse=-1"),
        ({"codec": "int8", "compressor": "topk:0.1"}, "give codec= or compressor=, not both"),
        ({"compressor": "topp:0.1"}, "topp"),
        ({"credit": 0}, "credit=0 must be 1 or more"),
        ({"credit": 2, "compressor": "int8"}, "credit=2 goes without compressor="),
    ],
)
def test_bad_settings(options: dict[str, Any], words: str) -> None:
    with hocket.local_world(1) as world:
        text = world.run(lambda comm: raised(lambda: Scheduler(comm, **options), ArgumentError))[0]
    assert words in text, text


@pytest.mark.parametrize("order", ["priority", "agreed"])
def test_strided_gradients_with_a_compressor(order: str) -> None:
    """And on a rank that leaves it out, whose zeros are not strided."""

    def program(comm: hocket.Communicator) -> list[list[float]]:
        matrix = np.full((6, 2), 2.0 * comm.rank, np.float32)
        scheduler, out = Scheduler(comm, order=order, compressor="int8"), []
        for gradient in (matrix[:, 0], matrix[::-1, 1], matrix[::2]):
            name = f"{gradient.shape} {gradient.strides}"
            scheduler.declare(name, gradient)
        for gradient in (matrix[:, 0], matrix[::-1, 1], matrix[::2]):
            name = f"{gradient.shape} {gradient.strides}"
            if comm.rank or gradient.ndim == 1:
                scheduler.ready(name, gradient)
        scheduler.step()
        for gradient in (matrix[:, 0], matrix[::-1, 1], matrix[::2]):
            average = scheduler.wait(f"{gradient.shape} {gradient.strides}")
            out.append(np.unique(average).tolist())
        scheduler.close()
        return out

    assert hocket.local_world(2).run(program)[1][:2] == [[1.0], [1.0]]


def test_sums_of_halves_warn_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert is_finite(np.ones(70_000, np.float16)) and not is_finite(np.array([np.inf, -np.inf], np.float32))


@pytest.mark.parametrize("order", ["priority", "agreed"])
def test_back_to_a_state_while_a_step_is_under_way(order: str) -> None:
    """A debt of that step counts for what was before."""

    def program(comm: hocket.Communicator, back: bool) -> Any:
        scheduler, gradient = Scheduler(comm, order=order, compressor="topk:0.1"), np.zeros(500, np.float32)
        draws = np.random.default_rng(comm.rank).normal(size=(8, 500)).astype(np.float32)
        scheduler.declare("g", gradient)
        out: list[Any] = []

        def step(number: int) -> None:
            gradient[...] = draws[number]
            scheduler.ready("g", gradient)
            scheduler.step()

        for number in range(8):
            step(number)
            out.append(scheduler.wait("g").copy())
            if back and number == 3:
                state = scheduler.state_dict()
                time.sleep(0.1 * comm.rank)
                step(4)
                scheduler.load_state_dict(state)
                scheduler.wait("g")
        scheduler.close()
        return out

    with hocket.local_world(2) as world:
        plain, again = (world.run(lambda comm, back=back: program(comm, back)) for back in (False, True))
    np.testing.assert_array_equal(again, plain)


@pytest.mark.parametrize("order", ["priority", "fifo"])
def test_a_step_takes_time_by_the_number_of_tensors(order: str) -> None:
    """And not by its square: 8 times as many take 8 times as long, not 64."""

    def seconds(comm: hocket.Communicator, count: int) -> float:
        scheduler, array = Scheduler(comm, order=order), {f"t{i}": np.ones(2, np.float32) for i in range(count)}
        for name, each in array.items():
            scheduler.declare(name, each)
        best = 1e9
        for _ in range(3):
            began = time.thread_time()
            for name in reversed(array):
                scheduler.ready(name, array[name])
            scheduler.step()
            for name in array:
                scheduler.wait(name)
            best = min(best, time.thread_time() - began)
        return best

    with hocket.local_world(1) as world:
        few, many = (world.run(lambda comm, count=count: seconds(comm, count))[0] for count in (400, 3200))
    assert many < 24 * few, (few, many)
