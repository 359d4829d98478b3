"""The CUDA reductions, emulated: every dtype x op x k has the bits of the CPU's kernels, and those of the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.conformance import oracle
from hocket.errors import ArgumentError
from hocket.kernels.cpu import reduce
from hocket.kernels.dtypes import DType, by_name
from hocket.kernels.gpu import catalogue, launch
from hocket.kernels.ops import OPS
from support.gpu.emulation import OK, Buffer, Emulator, modules_of

pytestmark = pytest.mark.gpu
Array = np.ndarray[Any, Any]
CASES = [(row, op.name) for row in oracle.ROWS for op in OPS if row.kind in op.kinds]
LENGTHS = (0, 1, 7, 8, 9, 255, 4099)
GRID, BLOCK = 3, 64


def alignment(row: DType) -> int:
    """The alignment of the parts of an element: what a GPU needs."""
    return row.itemsize // (2 if row.kind in ("complex", "pair") else 1)


def random_bits(row: DType, count: int, rng: np.random.Generator) -> Array:
    bits = rng.integers(0, 256, count * row.itemsize, dtype=np.uint8)
    return bits.view(oracle.numpy_dtype(row))


def check(emulator: Emulator, row: DType, op: str, inputs: list[Array], offsets: list[int], place: int | None) -> None:
    """`place`: the input that is overwritten, or none."""
    given = [Buffer.of(x, offset) for x, offset in zip(inputs, offsets, strict=False)]
    out = Buffer(inputs[0].nbytes, offsets[-1]) if place is None else given[place]
    few, kernel = len(inputs) <= launch.RANKS, catalogue.reduce(row.name, op)
    kernel = kernel if few else catalogue.many(kernel)
    addresses = (launch.pointers if few else launch.ways)([buffer.address for buffer in given])
    values = addresses, out.address, len(inputs[0]), len(inputs)
    assert emulator.loops(kernel, GRID, BLOCK, *values) == OK
    want = np.empty_like(inputs[0])
    reduce.reduce_arrays(want, inputs, op)
    got = out.as_array(want.dtype)
    good = oracle.same(got, want)
    if not good.all():
        at = int(np.argmin(good))
        operands = [x[at] for x in inputs]
        pytest.fail(f"{row} {op} element {at} of {len(got)}, {place=}: {operands} gave {got[at]}, not {want[at]}")
    for j, (buffer, x) in enumerate(zip(given, inputs, strict=True)):
        assert buffer.is_intact() and (j == place or buffer.bytes.tobytes() == x.tobytes())
    assert out.is_intact()


@pytest.mark.parametrize(("row", "op"), CASES, ids=str)
def test_has_the_bits_of_the_cpu(emulator: Emulator, row: DType, op: str) -> None:
    rng = np.random.default_rng(row.code * 16 + len(op))
    step = alignment(row)
    for k in (*range(1, 10), 33):
        for count in LENGTHS if k < 9 else LENGTHS[-2:]:
            make = random_bits if count % 2 else oracle.samples
            inputs = [make(row, count, rng) for _ in range(k)]
            check(emulator, row, op, inputs, [0] * (k + 1), None if count % 3 else k - 1)
            odd = [step * int(n) for n in rng.integers(0, 5, k + 1)]
            check(emulator, row, op, inputs, odd, 0 if count > 255 else None)


@pytest.mark.parametrize(("row", "op"), CASES, ids=str)
def test_has_the_bits_of_the_oracle(emulator: Emulator, row: DType, op: str) -> None:
    rng = np.random.default_rng(row.code)
    inputs = [oracle.samples(row, 1000, rng) for _ in range(5)]
    out = Buffer(inputs[0].nbytes)
    given = [Buffer.of(x) for x in inputs]
    addresses = launch.pointers([buffer.address for buffer in given])
    assert emulator.loops(catalogue.reduce(row.name, op), GRID, BLOCK, addresses, out.address, 1000, 5) == OK
    want = oracle.fold(op, inputs)
    assert oracle.same(out.as_array(want.dtype), want).all()


def test_what_has_no_kernel_is_refused() -> None:
    with pytest.raises(ArgumentError, match="op 'band' needs integers or bool, got float32"):
        catalogue.reduce("float32", "band")
    with pytest.raises(ArgumentError, match="op 'sum' needs numbers or bool, got bytes"):
        catalogue.reduce(by_name("bytes").name, "sum")
    with pytest.raises(ArgumentError, match="at most 8 buffers, got 9"):
        launch.pointers(range(9))


EXPRESSIONS = [
    ("float32", "a + a - b", lambda a, b: a + a - b),
    ("float16", "a > b ? a : b", np.maximum),
    ("int8", "a * b\n + a", lambda a, b: a * b + a),
    ("uint64", "a ^ (b << 1)", lambda a, b: a ^ (b << np.uint64(1))),
    ("bool", "a + b", np.logical_or),
]


def test_expressions(tmp_path: Path) -> None:
    """In the element's own type, left to right."""
    kernels = [catalogue.reduce_by(dtype, text) for dtype, text, _ in EXPRESSIONS]
    emulator = Emulator(tmp_path, modules_of(kernels))
    for kernel, (dtype, text, function) in zip(kernels, EXPRESSIONS, strict=True):
        dice = np.random.default_rng(len(text))
        inputs = [dice.integers(0, 2 if dtype == "bool" else 100, 1000).astype(dtype) for _ in range(3)]
        given, out = [Buffer.of(x) for x in inputs], Buffer(inputs[0].nbytes)
        addresses = launch.pointers([buffer.address for buffer in given])
        assert emulator.loops(kernel, GRID, BLOCK, addresses, out.address, 1000, 3) == OK
        want = function(function(inputs[0], inputs[1]), inputs[2])
        assert (out.as_array(want.dtype) == want).all(), f"{text} of {dtype}"
    with pytest.raises(ArgumentError, match="got complex64"):
        catalogue.reduce_by("complex64", "a")
