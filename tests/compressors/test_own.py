"""A codec of two functions, and the choice of a method by measuring."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.compression import Compressor, Own, choose
from hocket.errors import ArgumentError
from support.worlds import spread

Array = np.ndarray[Any, Any]


def nearest(x: Array) -> Array:
    """A scale, and 8 bits each: of another length than the vector's."""
    scale = np.float32(max(float(abs(x).max(initial=0)), 1e-30) / 127)
    return np.concatenate([np.array([scale]).view(np.int8), np.rint(x / scale).astype(np.int8)])


def back(wire: Array, count: int) -> Array:
    return wire[4:].view(np.int8) * wire[:4].view(np.float32)[0]


def feeds_back(comm: hocket.Communicator) -> None:
    """The sum of many calls is the sum of what was given, but for what is owed in the end."""
    compressor = Compressor(comm, Own("nearest", nearest, back))
    dice, given, came = np.random.default_rng(comm.rank), np.zeros(300, np.float32), np.zeros(300, np.float32)
    for _ in range(30):
        xs = [dice.standard_normal((20, 10), np.float32), dice.standard_normal(100, np.float32)]
        given += np.concatenate([x.reshape(-1) for x in xs])
        compressor.allreduce_all(xs, ["a", "b"])
        came += np.concatenate([x.reshape(-1) for x in xs])
    comm.allreduce(given, "avg")
    assert abs(came - given).max() < 0.1 and not comm.check_equal(came)


@pytest.mark.parametrize(("size", "transport"), [(1, "threads"), (3, "threads"), (2, "tcp")])
def test_what_is_lost_is_sent_later(size: int, transport: str) -> None:
    spread(feeds_back, size, transport)


def blind(x: Array) -> Array:
    """Whole numbers, of which a NaN is one, too."""
    return np.where(np.isfinite(x), np.rint(x), 0).astype(np.int8)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_nan_reaches_all_ranks_though_the_codec_has_none(value: float) -> None:
    def run(comm: hocket.Communicator) -> None:
        compressor = Compressor(comm, Own("blind", blind, lambda wire, count: wire.view(np.int8)))
        for bad in (False, True, False):
            xs = [np.full(5, 3.2, np.float32), np.full(2, 1.0, np.float32)]
            if bad and comm.rank == 1:
                xs[0][4] = value
            compressor.allreduce_all(xs, ["a", "b"])
            assert np.isnan(xs[0]).all() if bad else (xs[0] == 3).all(), (bad, xs)
            assert bad or (xs[1] == 1).all(), (bad, xs)
            assert not comm.check_equal(np.nan_to_num(xs[0]))
        assert (compressor.allreduce(np.full(5, 3.2, np.float32), "a") == 4).all()  # of the NaN nothing is owed

    hocket.local_world(2).run(run)


def test_what_decodes_to_another_length_is_told_on_all_ranks() -> None:
    def run(comm: hocket.Communicator) -> None:
        wrong = Own("wrong", nearest, lambda wire, count: np.zeros(count + 1))
        with pytest.raises(ArgumentError, match="codec 'wrong': decode returned 6 numbers; expected 5"):
            Compressor(comm, wrong).allreduce(np.ones(5, np.float32), "w")
        assert comm.allreduce(1) == 2

    hocket.local_world(2).run(run)
    with pytest.raises(ArgumentError, match="must be functions"):
        Own("x", nearest, None)  # type: ignore[arg-type]


def test_all_ranks_choose_the_same() -> None:
    def run(comm: hocket.Communicator) -> str:
        found = choose(comm, [(64, 32), (7,)], ["int8", "topk:0.1"])
        assert set(found.seconds) == {"float32", "int8", "topk:0.1"}
        return str(found)

    first, second = hocket.local_world(2).run(run)
    assert first == second and "also tried: " in first


def test_codecs_and_methods_point_to_each_other() -> None:
    def run(comm: hocket.Communicator) -> None:
        with pytest.raises(ArgumentError, match=r"Compressor\(comm, method\)"):
            comm.allreduce(np.ones(3, np.float32), codec="topk:0.1")
        with pytest.raises(ArgumentError, match="fp16 and bf16 are codecs of calls"):
            Compressor(comm, "top:0.1")

    hocket.local_world(1).run(run)


PACKAGE = """
import zlib
import numpy as np
from hocket.compression import Int, Own

def make(text):
    if text == "codec":
        return Int(6)
    level = int(text or 6)
    return Own(
        f"halves:{level}",
        lambda x: np.frombuffer(zlib.compress(x.astype(np.float16).tobytes(), level), np.uint8),
        lambda wire, count: np.frombuffer(zlib.decompress(wire.tobytes()), np.float16),
    )
"""


def test_a_codec_of_another_package(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "hocket_halves-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: hocket_halves\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[hocket.codecs]\nhalves = hocket_halves:make\nint8 = hocket_halves:make\n")
    (tmp_path / "hocket_halves.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "hocket_halves", raising=False)

    def run(comm: hocket.Communicator) -> tuple[str, list[float], int]:
        x = np.full(3000, comm.rank, np.float32)
        compressor = Compressor(comm, "halves:9")
        compressor.allreduce(x, "w")
        names = [Compressor(comm.dup(), name).method.name for name in ("halves", "halves:codec", "int8")]
        assert names == ["halves:6", "int6", "int8"], names
        for name, text in (("halves:much", "'halves:much' of hocket_halves:make cannot be made: ValueError"),
                           ("halfs", "did you mean 'halves'")):  # fmt: skip
            with pytest.raises(ArgumentError, match=text):
                Compressor(comm, name)
        return compressor.method.name, x[:2].tolist(), compressor.stats("w").sent

    name, came, sent = hocket.local_world(2).run(run)[1]
    assert name == "halves:9" and came == [0.5, 0.5] and sent < 100
