"""The dtype table: one row per element type that hocket moves or reduces.

The codes are those of kernels/dtypes.h.  NumPy is needed to recognise a dtype; ml_dtypes and torch are
recognised by name and never imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hocket.arguments import choices
from hocket.errors import ArgumentError

if TYPE_CHECKING:
    import numpy as np


class DType(NamedTuple):
    """One row.  `kind` is bool, int, uint, float, complex, pair ({value, index}) or opaque (moved, never reduced).

    `numpy` and `torch` are the names those libraries use, empty where they have none; the NumPy names that
    NumPy itself lacks are those of ml_dtypes.
    """

    code: int
    name: str
    itemsize: int
    kind: str
    numpy: str
    torch: str
    @property
    def block(self) -> int:
        """Elements of an array that become one on the wire; more for a Codec (codecs.py)."""
        return 1

    def __str__(self) -> str:
        return self.name

    def nbytes(self, count: int) -> int:
        """Bytes of so many elements."""
        return count * self.itemsize


DTYPES: tuple[DType, ...] = tuple(
    DType(code, *row)
    for code, row in enumerate(
        (
            ("bool", 1, "bool", "bool", "torch.bool"),
            ("int8", 1, "int", "int8", "torch.int8"),
            ("uint8", 1, "uint", "uint8", "torch.uint8"),
            ("int16", 2, "int", "int16", "torch.int16"),
            ("uint16", 2, "uint", "uint16", "torch.uint16"),
            ("int32", 4, "int", "int32", "torch.int32"),
            ("uint32", 4, "uint", "uint32", "torch.uint32"),
            ("int64", 8, "int", "int64", "torch.int64"),
            ("uint64", 8, "uint", "uint64", "torch.uint64"),
            ("float16", 2, "float", "float16", "torch.float16"),
            ("bfloat16", 2, "float", "bfloat16", "torch.bfloat16"),
            ("float32", 4, "float", "float32", "torch.float32"),
            ("float64", 8, "float", "float64", "torch.float64"),
            ("complex64", 8, "complex", "complex64", "torch.complex64"),
            ("complex128", 16, "complex", "complex128", "torch.complex128"),
            ("float8_e4m3fn", 1, "float", "float8_e4m3fn", "torch.float8_e4m3fn"),
            ("float8_e5m2", 1, "float", "float8_e5m2", "torch.float8_e5m2"),
            ("float32_int32", 8, "pair", "", ""),
            ("float64_int64", 16, "pair", "", ""),
            ("int32_int32", 8, "pair", "", ""),
            ("int64_int64", 16, "pair", "", ""),
            ("bytes", 1, "opaque", "", ""),
        )
    )
)

_BY_NAME = {dtype.name: dtype for dtype in DTYPES}
_BY_NUMPY = {dtype.numpy: dtype for dtype in DTYPES if dtype.numpy}
_BY_TORCH = {dtype.torch: dtype for dtype in DTYPES if dtype.torch}
TORCH_NAMES = frozenset(_BY_TORCH)
"""str(tensor.dtype) of every dtype that torch has, too."""


def by_code(code: int) -> DType:
    """The row with this code."""
    return DTYPES[code]


def by_name(name: str) -> DType:
    """The row called `name`."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise ArgumentError(f"{name!r} is not a dtype; {choices(name, _BY_NAME)}") from None


def from_numpy(dtype: np.dtype[Any]) -> DType:
    """The row for a NumPy dtype, those of ml_dtypes included.

    A packed structure of two fields {value, index} is a pair dtype, whatever its fields are called.
    """
    if not _is_native(dtype):
        raise ArgumentError(f"dtype {dtype} is not in native byte order; convert with .astype(dtype.newbyteorder('='))")
    row = _pair(dtype) if dtype.names is not None else _BY_NUMPY.get(dtype.name)
    if row is None:
        raise ArgumentError(
            f"dtype {dtype} is not supported; known: {', '.join(_BY_NUMPY)}, and packed structures of two "
            f"fields {{value, index}}: {', '.join(d.name for d in DTYPES if d.kind == 'pair')}"
        )
    return row


def from_torch_name(name: str) -> DType:
    """The row for `str(tensor.dtype)`, such as "torch.bfloat16"."""
    try:
        return _BY_TORCH[name]
    except KeyError:
        raise ArgumentError(f"dtype {name} is not supported; known: {', '.join(_BY_TORCH)}") from None


def _is_native(dtype: np.dtype[Any]) -> bool:
    # isnative of a structure looks at its fields; ml_dtypes answer True.
    return bool(dtype.isnative)


def _pair(dtype: np.dtype[Any]) -> DType | None:
    """The pair row with the fields of `dtype`, in order and without padding, if there is one."""
    fields = [dtype.fields[name] for name in dtype.names or ()] if dtype.fields else []
    if len(fields) != 2:
        return None
    (value, first), (index, second) = ((field[0], field[1]) for field in fields)
    row = _BY_NAME.get(f"{value.name}_{index.name}")
    packed = row is not None and (first, second) == (0, value.itemsize) and dtype.itemsize == row.itemsize
    return row if packed else None
