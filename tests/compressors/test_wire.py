"""`encode` and `decode`: bytes for carriers that are not hocket's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hocket
from hocket.compression import FP8, QSGD, Int, Int4, Natural, OneBit, Sign, TernGrad, TopK, decode, encode
from support.cases import each

BLOCKS: dict[Any, float] = {
    "int8": 1 / 254, "int4": 1 / 14, "fp8": 1 / 16, "sign": 1.0, Int4(block=64): 1 / 14, Int(5): 1 / 30,
    FP8(64): 1 / 16, Sign(64): 1.0, OneBit(): 2.0, QSGD(7): 1 / 7, TernGrad(): 1.0, Natural(): 1.0,
}  # fmt: skip
"""The bound of each codec: the error of an element, at most, as a part of the largest magnitude."""
SPARSE = ("topk:0.1", "topk:0.1:64", "topk:0.1:fp16", "threshold:0.5", TopK(0.01))


def vector(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@each("shape", [(0,), (1,), (1000,), (7, 3, 11), ()])
@each("method", BLOCKS)
def test_codecs_of_blocks(method: Any, shape: tuple[int, ...]) -> None:
    x = vector(*shape) if shape else np.array(2.0, np.float32)
    wire = encode(x, method, key=5)
    made = decode(wire, method, shape)
    assert isinstance(wire, bytes) and made.shape == x.shape and made.dtype == np.float32
    assert wire == encode(x, method, key=5)
    assert np.abs(made - x).max(initial=0) <= BLOCKS[method] * np.abs(x).max(initial=0) * (1 + 1e-5)


def test_lengths_are_those_of_the_page() -> None:
    x = vector(1_000_000)
    assert {name: len(encode(x, name)) for name in ("int8", "int4", "sign")} == {
        "int8": 1_015_820, "int4": 531_284, "sign": 140_652,
    }  # fmt: skip
    assert len(encode(x, "topk:0.01")) == 60_000 and len(encode(x, "topk:0.01:fp16")) == 40_000


@pytest.mark.parametrize("method", SPARSE, ids=lambda method: getattr(method, "name", str(method)))
def test_sparse(method: Any) -> None:
    x = vector(20, 50)
    made = decode(encode(x, method), method, x.shape)
    sent = made != 0
    assert 0 < sent.sum() < x.size and np.allclose(made[sent], x[sent], rtol=1e-3)
    assert np.abs(x[~sent]).min() <= np.abs(x[sent]).min() or "64" in str(method)


def test_far_elements() -> None:
    x = np.zeros(500_000, np.float32)
    x[[3, 400_000]] = 1, 2
    assert (decode(encode(x, "threshold:0.5"), "threshold:0.5", x.shape) == x).all()
    assert encode(np.zeros(9, np.float32), "threshold:0.5") == b""
    assert not decode(b"", "threshold:0.5", 9).any()


def test_what_is_lost_comes_later() -> None:
    """A sender with feedback loses nothing: the mean of what came is nearer than one encoding."""
    for method in ("sign", "int4", "topk:0.1"):
        x, owed, came = vector(512), np.zeros(512, np.float32), np.zeros(512)
        for _ in range(60):
            given = x + owed
            made = decode(encode(given, method), method, given.shape)
            owed, came = given - made, came + made
        once = np.linalg.norm(decode(encode(x, method), method, x.shape) - x)
        assert np.linalg.norm(came / 60 - x) < once / 3


@pytest.mark.parametrize(
    ("data", "method", "shape", "told"),
    [
        (b"", "int8", 5, "260 B, got 0 B"), (bytes(261), "int8", 5, "260 B, got 261 B"),
        (bytes(260), "int8", 257, "got"), (bytes(7), "topk:0.5", 5, "6 bytes each"),
        (encode(vector(9), "topk:1"), "topk:1", 5, "element 8 of 5"),
        (bytes(6), "topk:0.5", 5, "distance 0 has no pair after it"),
    ],
)  # fmt: skip
def test_wrong_bytes(data: bytes, method: str, shape: int, told: str) -> None:
    with pytest.raises(hocket.ArgumentError, match=told):
        decode(data, method, shape)


def test_wrong_arguments() -> None:
    with pytest.raises(hocket.ArgumentError, match="float32, got float64"):
        encode(np.ones(3), "int8")
    for method in ("powersgd:4", "randomk:0.1", "dgc:0.1", "nonzero", "doublesqueeze:int8"):
        with pytest.raises(hocket.ArgumentError, match="cannot encode one vector"):
            encode(vector(3), method)
    with pytest.raises(hocket.ArgumentError, match="not a method"):
        encode(vector(3), "int9")
