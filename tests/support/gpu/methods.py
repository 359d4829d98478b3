"""Methods of compression on a GPU's arrays beside the same on NumPy's, by the same ranks; all of it runs in the ranks.

The bits are the same where the arithmetic is; nothing waits for the GPU, and nothing leaves it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from hocket.compression import DGC, Compressor, DoubleSqueeze, Int, OneBit
from hocket.errors import ArgumentError
from support.gpu import ranks as gpu_ranks
from support.gpu.counted import counting

Place = Callable[[Any], Any]
METHODS: tuple[Any, ...] = (
    "int8", "fp8", "int4", "sign", OneBit(64), Int(3, 192), "doublesqueeze:int8", DoubleSqueeze("sign"), "topk:0.01",
    "topk:0.05:64", "topk:0.03:fp16", "topk:0.03:bf16", "topk:0.9", "randomk:0.1", "dgc:0.02",
    DGC(0.05, nesterov=True, warmup=[0.5, 0.25]), DGC(0.02, clip=0.5, masking=False), "ef21:topk:0.1", "ef21:int8",
    "powersgd:1", "powersgd:4", "powersgd:2:bf16",
)  # fmt: skip
FEW: tuple[Any, ...] = ("sign", "doublesqueeze:int8", "topk:0.03:fp16", METHODS[15], "powersgd:2:bf16")
"""One of each kind."""
OF_LIBRARIES = FEW[2:]
"""Methods whose heavy parts are not kernels of hocket's."""
ON_HOST = ("threshold:0.1", "nonzero", "elias:4", "shared:1", "twobits:0.1", "adasum")
SHAPES = ((33, 47), (130,), (40, 3, 5), (1,))


def gradients(rank: int, turn: int) -> list[Any]:
    dice = np.random.default_rng([rank, turn])
    return [(dice.standard_normal(shape) * 3).astype(np.float32) for shape in SHAPES]


def same(got: Any, want: Any, about: str, near: bool) -> None:
    assert got.shape == want.shape and got.dtype == want.dtype, about
    if near:
        assert np.allclose(got, want, 1e-3, 1e-4, equal_nan=True), (about, np.abs(got - want).max())
    else:
        assert np.array_equal(got, want, equal_nan=True), (about, np.abs(got - want).max())


def beside(comm: Any, method: Any, place: Place, read: Place, **how: Any) -> None:
    """Steps with other rates, one not finite on one rank; then a step of several calls, and one that is dropped."""
    host, there = Compressor(comm, method, **how), Compressor(comm, method, **how)
    name, keys = host.method.name, [f"p{i}" for i in range(len(SHAPES))]
    parked = {"waits": 1 << 20, "to_host": 1 << 20} if how.get("keep") == "host" else {}
    near = name.startswith("powersgd") or getattr(host.method, "clip", None) is not None
    for turn, rate in enumerate((0.1, 0.1, 0.05, 0.05, 0.2)):
        given = gradients(comm.rank, turn)
        if turn == 3 and comm.rank == 0:
            given[0][3, 4] = np.inf
        xs = [place(x) for x in given]
        with counting(**parked):
            there.allreduce_all(xs, keys, "sum" if turn == 4 else "avg", lr=rate)
        if turn == 3:  # on a GPU it is the whole call's
            with host.step():
                host.allreduce_all(given, keys, lr=rate)
        else:
            host.allreduce_all(given, keys, "sum" if turn == 4 else "avg", lr=rate)
        for key, x, want in zip(keys, xs, given, strict=True):
            same(read(x), want, f"{name}, {how}, turn {turn}, {key}", near)
    for turn in (5, 6):
        given = gradients(comm.rank, turn)
        xs = [place(x) for x in given]
        steps = host.step(), there.step()
        for key, x, want in zip(keys, xs, given, strict=True):
            host.allreduce(want, key)
            with counting(**parked):
                there.allreduce(x, key)
        for step in steps:
            step.end() if turn == 5 else step.drop()
        for key, x, want in zip(keys, xs, given, strict=True):
            same(read(x), want, f"{name}, {how}, turn {turn}, {key}", near)
    states = host.state_dict()["entries"], there.state_dict()["entries"]
    for key in keys:
        one, other = states[0][key], states[1][key]
        same(other["residual"], one["residual"], f"what {name} owes {key}, {how}", near)
        if not near:
            assert one["kept"].keys() == other["kept"].keys(), (name, key)
            for part, kept in one["kept"].items():
                if part == "step":  # counted on the host, where nobody knows that a call did not count
                    assert other["kept"][part] == kept + 1
                    continue
                same(other["kept"][part], kept, f"{part} of {name}, {key}", near)
    again = Compressor(comm, method, **how)
    again.load_state_dict(there.state_dict())
    x, y = (place(gradients(comm.rank, 9)[0]) for _ in range(2))
    same(read(again.allreduce(x, keys[0])), read(there.allreduce(y, keys[0])), f"{name} goes on where it was", near)
    assert 0 <= there.stats(keys[0]).error < 10 and there.stats(keys[0]).calls
    lies = {isinstance(entry.residual, np.ndarray) for entry in there._entries.values()}
    assert lies == {how.get("keep") == "host"}, f"where it lies what {name} owes, {how}"


def rows(comm: Any, place: Place, read: Place) -> None:
    """`reduce_scatter` and `allgather` of a Compressor, which FSDP2 uses."""
    for method in ("int8", "int4", "sign"):
        host, there = Compressor(comm, method), Compressor(comm, method)
        for turn in range(3):
            x = np.random.default_rng([comm.rank, turn]).standard_normal((comm.size, 30, 11), np.float32)
            if turn == 1 and comm.rank == 0:
                x[1, 2, 3] = np.nan
            given, out, into = place(x), place(x[0]), np.empty_like(x[0])
            few = np.random.default_rng(comm.rank).standard_normal(700, np.float32) + turn
            wanted = np.zeros((comm.size, 700), np.float32)
            mine, every = place(few), place(wanted)
            with counting():
                there.reduce_scatter(given, "rows", out, "sum" if turn else "avg", lr=0.1)
                there.allgather(mine, "all", every)
            host.reduce_scatter(x.copy(), "rows", into, "sum" if turn else "avg", lr=0.1)
            host.allgather(few, "all", wanted)
            same(read(out), into, f"rows of {method}, {turn}", near=False)
            same(read(given), x, "x keeps its values", near=False)
            same(read(every), wanted, f"gathered by {method}, {turn}", near=False)
        same(there.state_dict()["entries"]["rows"]["residual"], host.state_dict()["entries"]["rows"]["residual"],
             f"what rows of {method} owe", near=False)  # fmt: skip
        assert there.stats("all").error < 1
    with pytest.raises(ArgumentError, match="has no reduce_scatter"):
        Compressor(comm, "topk:0.1").reduce_scatter(place(x), "w", place(x[0]))


def wrong(comm: Any, place: Place, read: Place) -> None:
    """Memory that is full, and vectors here and there: an error on each rank, and nothing has happened."""
    given = np.random.default_rng(comm.rank).standard_normal(300_000, np.float32)
    host, there, x = Compressor(comm, "topk:0.1"), Compressor(comm, "topk:0.1"), place(given)
    gpu_ranks.knob("room", gpu_ranks.count("bytes"))
    with pytest.raises(MemoryError, match="no room for 1200000 bytes on "):
        there.allreduce(x, "w")
    gpu_ranks.knob("room", 1 << 40)
    with pytest.raises(ArgumentError, match="these lie on .* and in host memory"):
        there.allreduce_all([x, given], ["w", "v"])
    same(read(x), given, "x after errors", near=False)
    same(read(there.allreduce(x, "w")), host.allreduce(given, "w"), "after errors", near=False)


def everything(comm: Any, place: Place, read: Place, methods: Sequence[Any] = METHODS) -> None:
    for method in methods:
        beside(comm, method, place, read)
    for method in ("int8", "topk:0.05", "powersgd:2") if methods is METHODS else ("int8",) if methods is FEW else ():
        beside(comm, method, place, read, feedback=False)
        beside(comm, method, place, read, decay=0.5)
    rows(comm, place, read)
    wrong(comm, place, read)
    for method in ("topk:0.05", "dgc:0.1") if methods is METHODS else ("ef21:topk:0.1",):
        beside(comm, method, place, read, keep="host")
    with pytest.raises(ArgumentError, match="keep='disk'"):
        Compressor(comm, "int8", keep="disk")
    for method in ON_HOST:
        with pytest.raises(ArgumentError, match="works in host memory: .*pass a copy"):
            Compressor(comm, method).allreduce(place(gradients(0, 0)[0]), "w")
