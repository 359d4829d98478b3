"""Arrays that move from one layout to another: real bytes between ranks, and what is wrong is told on all of them."""

from __future__ import annotations

import itertools
import pathlib
import random
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hocket
from hocket import Layout
from hocket.collectives.communicator.communicator import Communicator
from hocket.collectives.layouts import moving, pulls
from support.cases import more
from support.faulty import facts, job
from support.layouts import some_hosts, some_layout, some_shape

DTYPES = ("float32", "float16", "int8", "float64", "complex128", "uint16", "bool")
Trees = dict[str, Layout]


def numbers(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)


def cut_by(layouts: Trees, whole: dict[str, np.ndarray], rank: int) -> dict[str, list[np.ndarray]]:
    return {name: [part.copy() for part in layouts[name].parts(x, rank)] for name, x in whole.items()}


def moved(comm: Communicator, whole: dict[str, np.ndarray], source: Trees, target: Trees, **how: Any) -> None:
    """Redistribute, and compare every element; what was given stays."""
    tree, before = cut_by(source, whole, comm.rank), cut_by(source, whole, comm.rank)
    made = comm.redistribute(tree, source, target, **how)
    wanted = cut_by(target, whole, comm.rank)
    for name in whole:
        for got, want in zip([*made[name], *tree[name]], [*wanted[name], *before[name]], strict=True):
            assert got.dtype == want.dtype and np.array_equal(got, want)


def some_job(seed: int, size: int) -> tuple[dict[str, np.ndarray], Trees, Trees]:
    dice = random.Random(seed)
    shapes = {name: some_shape(dice) for name in "abc"[: dice.randrange(1, 4)]}
    whole = {name: numbers(shape, dice.choice(DTYPES), seed) for name, shape in shapes.items()}
    source = {name: some_layout(dice, shape, size, True) for name, shape in shapes.items()}
    return whole, source, {name: some_layout(dice, shape, size, False) for name, shape in shapes.items()}


@pytest.mark.parametrize("way", ["pulled", "sent", "checked", "packed"])
@pytest.mark.parametrize("size", [1, 3, *more(2, 5)])
def test_any_layout_becomes_any_other(size: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where ranks stand on several hosts, and where blocks are so short that every part is cut."""
    if way in ("sent", "packed"):
        monkeypatch.setattr(pulls.Reach, "__init__", lambda self, comm: setattr(self, "reads", [[]] * comm.size))
        monkeypatch.setattr(moving, "LEAST", 16)
        monkeypatch.setattr(moving, "MOST", 16)
        monkeypatch.setattr(moving, "ALONE", 24)
    with hocket.local_world(size) as world:
        for seed in range(25):
            job, hosts = some_job(seed, size), some_hosts(random.Random(seed), size)

            def run(comm: Communicator, job: Any = job, hosts: Any = hosts) -> None:
                comm.world.hosts = hosts
                how = {"codec": "lossless"} if way == "packed" else {}
                moved(comm, *job, check=way == "checked" or how and len(job[0]) > 1, **how)

            world.run(run)


def test_a_lossless_codec_saves_bytes_between_hosts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = np.random.default_rng(1).standard_normal((512, 512)).astype(np.float32)
    whole = {"w": weights, "n": numbers((9,), "int8", 1)}
    cut = {name: Layout.cut(x.shape, 2) for name, x in whole.items()}
    turned = {"w": Layout.cut((512, 512), 4, axis=1), "n": Layout.replicated((9,), 4)}
    wires: list[int] = []
    packs = moving.pack_array
    monkeypatch.setattr(moving, "pack_array", lambda x, form: wires.append(x.nbytes) or packs(x, form))

    def run(comm: Communicator, hosts: list[list[int]]) -> None:
        comm.world.hosts = hosts
        moved(comm, whole, cut, turned, codec="lossless")
        for wrong, text in (("int8", "say dtype="), ({"n": "lossless"}, "the array is int8"), ({"x": None}, "'x'")):
            with pytest.raises(hocket.ArgumentError, match=text):
                comm.redistribute(cut_by(cut, whole, comm.rank), cut, turned, codec=wrong)
        with pytest.raises(hocket.ArgumentError, match="codec= differ"):
            codec = "lossless" if comm.rank else None
            comm.redistribute(cut_by(cut, whole, comm.rank), cut, turned, codec=codec)

    with hocket.local_world(4) as world:
        world.run(run, [[0, 1, 2, 3]])
        assert not wires
        world.run(run, [[0, 1], [2, 3]])
        assert sum(wires) == whole["w"].nbytes // 2, "the parts of ranks 2 and 3, once"


def test_parts_of_many_kilobytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are pulled in many calls, and parts that travel straight or in blocks."""
    monkeypatch.setattr(pulls, "STEP", 1 << 16)
    whole = {"w": numbers((240, 700), "float32", 1)}
    layouts = [
        Layout.cut((240, 700), 4), Layout.cut((240, 700), 4, axis=1), Layout.flat((240, 700), 3),
        Layout.cyclic((240, 700), 4, axis=1), Layout.replicated((240, 700), 2), Layout.cyclic((240, 700), 4, block=7),
    ]  # fmt: skip

    def run(comm: Communicator) -> None:
        for hosts in ([[0, 1, 2, 3]], [[0, 1], [2, 3]]):
            comm.world.hosts = hosts
            for source in layouts:
                for target in layouts:
                    moved(comm, whole, {"w": source}, {"w": target})

    with hocket.local_world(4) as world:
        world.run(run)
        monkeypatch.setattr(pulls, "worth", lambda *boxes: False)
        monkeypatch.setattr(moving, "worth", pulls.worth)
        world.run(run)


def test_one_array_and_one_layout_for_all() -> None:
    rows, columns = Layout.cut((4, 6), 2), Layout.cut((4, 6), 2, axis=1)
    x = np.arange(24.0).reshape(4, 6)

    def run(comm: Communicator) -> None:
        [mine] = rows.parts(x, comm.rank)
        [got] = comm.redistribute([mine], rows, columns)
        assert np.array_equal(got, columns.parts(x, comm.rank)[0])
        both = hocket.redistribute({"a": [mine], "b": [mine + 1]}, rows, {"a": columns, "b": rows})
        assert np.array_equal(both["a"][0], got) and np.array_equal(both["b"][0], mine + 1)
        into = np.empty((4, 8))[:, 1:4]  # one that does not lie in C's order
        assert comm.redistribute([mine], rows, columns, into=[into])[0] is into and np.array_equal(into, got)
        turned = np.asfortranarray(mine)
        assert np.array_equal(comm.redistribute([turned], rows, columns)[0], got)

    with hocket.local_world(2) as world:
        world.run(run)


def test_whoever_holds_no_box_learns_the_dtype() -> None:
    here, there = Layout((3,), [[(slice(None),)]]), Layout((3,), [[], [(slice(1, 3),)]])

    def run(comm: Communicator) -> Any:
        return comm.redistribute([np.arange(3, dtype="int16")] if comm.rank == 0 else [], here, there)

    none, [got] = hocket.local_world(2).run(run)
    assert none == [] and got.dtype == np.int16 and got.tolist() == [1, 2]


def test_another_dtype_is_rounded_once_by_the_sender() -> None:
    x = np.random.default_rng(0).standard_normal((6, 5))
    source, target = Layout.cut((6, 5), 2), Layout.cut((6, 5), 2, axis=1)

    def run(comm: Communicator) -> None:
        for dtype in ("float32", "float16", np.dtype("complex64")):
            [got] = comm.redistribute(source.parts(x, comm.rank), source, target, dtype=dtype)
            assert got.dtype == dtype and np.array_equal(got, target.parts(x.astype(dtype), comm.rank)[0])

    with hocket.local_world(2) as world:
        world.run(run)


def test_prepared_calls_move_what_is_there_and_allocate_nothing() -> None:
    size = 1 << 18

    def run(comm: Communicator) -> int:
        x = np.zeros(size // 2, np.float32)
        plan = comm.prepare_redistribute({"w": [x]}, Layout.cut((size,), 2), Layout.replicated((size,), 2))
        first = plan()["w"][0]
        for step in range(1, 4):
            x[...] = step + 10 * comm.rank
            if step == 3 and comm.rank == 0:
                tracemalloc.start()
            made = plan() if step % 2 else plan.start().result()
            assert made["w"][0] is first and first[0] == step and first[-1] == step + 10
            comm.barrier()
        return tracemalloc.get_traced_memory()[1] if comm.rank == 0 else 0

    with hocket.local_world(2) as world:
        most, _ = world.run(run)
    tracemalloc.stop()
    assert most < 64 << 10


def test_asynchronous_ones_keep_their_order() -> None:
    a, b = Layout.cut((9,), 3), Layout.replicated((9,), 3)

    def run(comm: Communicator) -> list[list[float]]:
        works = [comm.redistribute([np.full(3, float(i))], a, b, async_op=True) for i in range(5)]
        last = comm.redistribute([np.full(3, 5.0)], a, b)
        assert all(work.done() and work.wait() for work in works)
        return [work.result()[0].tolist() for work in works] + [last[0].tolist()]

    for got in hocket.local_world(3).run(run):
        assert got == [[float(i)] * 9 for i in range(6)]


ROWS, ALL = Layout.cut((4,), 2), Layout.replicated((4,), 2)
HALF = np.zeros(2)
WRONG: dict[str, tuple[Callable[[Communicator], Any], str]] = {
    "unheld": (lambda c: c.redistribute([HALF] * (1 - c.rank), Layout((4,), [[(slice(0, 2),)]]), ALL),
               "array 'x': nobody holds [2:4], which ranks 0, 1 want"),
    "two shapes": (lambda c: c.redistribute([HALF], ROWS, Layout.replicated((5,), 2)), "has shape (4,) in source"),
    "layouts differ": (lambda c: c.redistribute({"w": [HALF]}, ROWS, {"w": ALL if c.rank else ROWS}),
                       "ranks 0 and 1 were given other things for array 'w': its layouts, dtype= or codec= differ"),
    "a name is lacking": (lambda c: c.redistribute({"w": [HALF]}, {"w": ROWS}, {"w": ROWS, "b": ROWS}),
                          "source has no layout for 'b'"),
    "a rank has another name": (lambda c: c.redistribute({"wv"[c.rank]: [HALF]}, ROWS, ROWS),
                                "for array 'v': rank 0 does not name it"),
    "an array too many": (lambda c: c.redistribute([HALF] * (1 + c.rank), ROWS, ALL),
                          "rank 1: tree has 2 arrays, and the layout 1 boxes on rank 1"),
    "another shape": (lambda c: c.redistribute([np.zeros(2 + c.rank)], ROWS, ALL), "rank 1: tree[0] has shape (3,)"),
    "other dtypes": (lambda c: c.redistribute([HALF.astype("fi"[c.rank])], ROWS, ALL),
                     "array 'x' is float32 on rank 0 and int32 on rank 1"),
    "objects": (lambda c: c.redistribute([HALF.astype(object)], ROWS, ALL), "Python objects"),
    "not a layout": (lambda c: c.redistribute([HALF], ROWS, [4]), "target must be a Layout"),
    "into is read-only": (lambda c: c.redistribute([HALF], ROWS, ALL, into=[np.broadcast_to(0.0, 4)]), "read-only"),
    "into is the source": (lambda c: c.redistribute([HALF], ROWS, ROWS, into=[HALF]), "shares memory"),
    "into has another dtype": (lambda c: c.redistribute([HALF], ROWS, ALL, into=[np.zeros(4, "f")]),
                               "into= of rank 0 is float32: to convert it, say dtype='float32'"),
    "no such conversion": (lambda c: c.redistribute([HALF], ROWS, ALL, dtype="int32"), "cannot become int32"),
    "room differs": (lambda c: c.redistribute([HALF], ROWS, ALL, room=1000 + c.rank), "another room="),
}  # fmt: skip


def test_what_is_wrong_is_told_on_all_ranks_and_they_go_on() -> None:
    def run(comm: Communicator) -> list[str]:
        told = []
        for name, (call, _) in WRONG.items():
            with pytest.raises(hocket.ArgumentError) as raised:
                call(comm)
            told.append(f"{name}: {raised.value}")
        assert comm.redistribute([HALF], ROWS, ALL)[0].shape == (4,)
        return told

    with hocket.local_world(2) as world:
        for texts in world.run(run):
            for text, (name, (_, wanted)) in zip(texts, WRONG.items(), strict=True):
                assert wanted in text, (name, text)


def test_other_bits_are_an_error_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    different = itertools.count()
    monkeypatch.setattr(moving, "digest", lambda data: next(different))

    def run(comm: Communicator) -> str:
        source, target = Layout.cut((4,), 2), Layout((4,), [[(slice(2, 4),)], []])
        with pytest.raises(hocket.MismatchError) as raised:
            comm.redistribute([HALF], source, target, check=True)
        return str(raised.value)

    with hocket.local_world(2) as world:
        for text in world.run(run):
            assert "array 'x', [2:4], from rank 1 to rank 0" in text


def test_nobody_reads_before_it_may_or_when_it_may_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank changes its array late, and again at once; the other one copies slowly."""
    real = pulls.Pull.run

    def slowly(self: pulls.Pull, number: int) -> None:
        time.sleep(0.05)
        real(self, number)

    monkeypatch.setattr(pulls.Pull, "run", slowly)

    def run(comm: Communicator) -> Any:
        x = np.zeros(500)
        plan = comm.prepare_redistribute([x], Layout.cut((1000,), 2), Layout.replicated((1000,), 2))
        if comm.rank == 0:
            time.sleep(0.2)
            x[...] = 1
        [got] = plan()
        x[...] = 2
        comm.barrier()
        return got[:500].tolist()

    with hocket.local_world(2) as world:
        assert world.run(run) == [[1.0] * 500] * 2


LOST = """
comm = hocket.init(timeout=60)
layouts = hocket.Layout.cut((90_000, 4), 3), hocket.Layout.cut((90_000, 4), 3, axis=1)
x = np.full((30_000, 4), float(comm.rank))
plan = comm.prepare_redistribute([x], *layouts)
plan()
ready()
with telling():
    for step in range(100_000):
        plan()
        if comm.rank == 2 and step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
say(kept=bool(np.all(x == comm.rank)))
"""


def test_a_rank_that_is_lost_in_the_middle(tmp_path: pathlib.Path) -> None:
    """The others are told at once, whether they copy from its memory or wait for it; what they gave is untouched."""
    with job(3, "import os, signal\n" + LOST, tmp_path) as run:
        ends = run.wait()
    for rank in (0, 1):
        told = facts(ends[rank])
        assert told["error"] == "PeerLostError" and told["kept"] is True, told
