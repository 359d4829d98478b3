"""The dtype and op tables: their codes are the C enums', their rows are what NumPy, ml_dtypes and torch say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from hocket.errors import ArgumentError
from hocket.kernels import dtypes, ops

KERNELS = Path(__file__).parents[2] / "kernels"


def c_enum(path: Path) -> list[str]:
    names = re.findall(r"^\s+HK_(\w+),?$", path.read_text(), re.MULTILINE)
    assert names[-1].endswith("_COUNT")
    return [name.lower() for name in names[:-1]]


def test_dtype_codes_are_those_of_the_c_enum() -> None:
    assert [dtype.name for dtype in dtypes.DTYPES] == c_enum(KERNELS / "dtypes.h")
    assert [dtype.code for dtype in dtypes.DTYPES] == list(range(len(dtypes.DTYPES)))


def test_op_codes_are_those_of_the_c_enum() -> None:
    assert [op.name for op in ops.OPS] == c_enum(KERNELS / "ops.h")
    assert [op.code for op in ops.OPS] == list(range(len(ops.OPS)))


@pytest.mark.parametrize("row", [row for row in dtypes.DTYPES if row.numpy], ids=str)
def test_numpy_and_torch_agree_with_the_row(row: dtypes.DType) -> None:
    numpy_dtype = np.dtype(getattr(np, row.numpy, None) or getattr(ml_dtypes, row.numpy))
    assert numpy_dtype.itemsize == row.itemsize
    assert dtypes.from_numpy(numpy_dtype) is row
    torch_dtype = getattr(torch, row.torch.removeprefix("torch."))
    assert torch_dtype.itemsize == row.itemsize
    assert dtypes.from_torch_name(str(torch_dtype)) is row
    assert dtypes.by_name(row.name) is row


@pytest.mark.parametrize("row", [row for row in dtypes.DTYPES if row.kind == "pair"], ids=str)
def test_pairs_are_packed_structures(row: dtypes.DType) -> None:
    value, index = row.name.split("_")
    packed = np.dtype([("v", value), ("where", index)])
    assert dtypes.from_numpy(packed) is row and packed.itemsize == row.itemsize


REFUSED = [
    np.dtype("S3"),
    np.dtype(object),
    np.dtype("datetime64[s]"),
    np.dtype(np.longdouble),
    np.dtype(ml_dtypes.float8_e4m3b11fnuz),
    np.dtype([("value", "f4"), ("index", "i8")]),
    np.dtype([("value", "f4"), ("index", "i4"), ("more", "i4")]),
    np.dtype({"names": ["v", "i"], "formats": ["f4", "i4"], "offsets": [4, 0]}),
    np.dtype({"names": ["v", "i"], "formats": ["f4", "i4"], "itemsize": 16}),
]


@pytest.mark.parametrize("dtype", REFUSED, ids=str)
def test_other_dtypes_are_refused_by_name(dtype: np.dtype[Any]) -> None:
    with pytest.raises(ArgumentError, match="known: bool, int8.*float32_int32") as raised:
        dtypes.from_numpy(dtype)
    assert str(dtype) in str(raised.value)


@pytest.mark.parametrize("dtype", [">f4", [("value", ">f4"), ("index", "i4")]], ids=str)
def test_foreign_byte_order_is_refused(dtype: object) -> None:
    with pytest.raises(ArgumentError, match="native byte order"):
        dtypes.from_numpy(np.dtype(dtype))  # type: ignore[call-overload]


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ArgumentError, match="torch.qint8.*known: torch.bool"):
        dtypes.from_torch_name("torch.qint8")
    with pytest.raises(ArgumentError, match="'float128' is not a dtype; known: bool"):
        dtypes.by_name("float128")
    for name, meant in {"mean": "avg", "average": "avg", "summ": "sum", "multipy": "prod", "argmx": "maxloc"}.items():
        with pytest.raises(ArgumentError, match=f"'{name}'.*; known: sum, .*, avg, band.*; did you mean '{meant}'"):
            ops.by_name(name)
    with pytest.raises(ArgumentError, match="'bfloat_16' is not a dtype; known: .*; did you mean 'bfloat16'"):
        dtypes.by_name("bfloat_16")


def test_aliases_name_the_same_row() -> None:
    for alias, name in {"product": "prod", "bitwise_and": "band", "logical_or": "lor", "SUM": "sum"}.items():
        assert ops.by_name(alias) is ops.by_name(name)
    names = [name for op in ops.OPS for name in (op.name, *op.aliases)]
    assert len(names) == len(set(names))


def test_lookup_says_what_is_allowed() -> None:
    assert ops.lookup("band", dtypes.by_name("uint8")) == ops.by_name("band").code
    for op, dtype, message in [
        ("bitwise_and", "float32", "op 'band' needs integers or bool, got float32"),
        ("min", "complex64", "op 'min' needs real numbers or bool, got complex64"),
        ("sum", "bytes", "op 'sum' needs numbers or bool, got bytes"),
        ("minloc", "float32", "op 'minloc' needs packed pairs {value, index} of {f4, i4}, {f8, i8}, {i4, i4} or "
         "{i8, i8}, as x.astype('f8,i8'), got float32"),
        ("sum", "float32_int32", "op 'sum' needs numbers or bool, got float32_int32"),
    ]:
        with pytest.raises(ArgumentError, match=re.escape(message)):
            ops.lookup(op, dtypes.by_name(dtype))
