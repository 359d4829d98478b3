"""Which datatype and op of MPI stand for ours, by name.  What is only moved goes by its size, whatever it is."""

from __future__ import annotations

from typing import NamedTuple

TYPES = {
    "bool": "C_BOOL", "int8": "INT8_T", "uint8": "UINT8_T", "int16": "INT16_T", "uint16": "UINT16_T",
    "int32": "INT32_T", "uint32": "UINT32_T", "int64": "INT64_T", "uint64": "UINT64_T", "float32": "FLOAT",
    "float64": "DOUBLE", "complex64": "C_FLOAT_COMPLEX", "complex128": "C_DOUBLE_COMPLEX", "int32_int32": "TWOINT",
}  # fmt: skip
"""MPI's pairs of a double or a long and an index are laid out otherwise than ours."""
OF_NANS = ("min", "max", "minloc", "maxloc")
"""These ops of floats are not MPI's: where one is NaN, MPICH's ranks hold different results, and Intel's lose it."""
ARITHMETIC = {"sum": "SUM", "prod": "PROD"}
ORDER = {"min": "MIN", "max": "MAX"}
LOGIC = {"band": "BAND", "bor": "BOR", "bxor": "BXOR", "land": "LAND", "lor": "LOR", "lxor": "LXOR"}
OF_BOOL = {
    "sum": "LOR", "prod": "LAND", "min": "LAND", "max": "LOR", "band": "LAND", "bor": "LOR", "bxor": "LXOR",
    "land": "LAND", "lor": "LOR", "lxor": "LXOR",
}  # fmt: skip
"""MPI knows only logical ops on truth values."""
OPS = {
    "bool": OF_BOOL,
    "float32": ARITHMETIC, "float64": ARITHMETIC, "complex64": ARITHMETIC, "complex128": ARITHMETIC,
    "int32_int32": {"minloc": "MINLOC", "maxloc": "MAXLOC"},
}  # fmt: skip
BY_SIZE = {1: "BYTE", 2: "INT16_T", 4: "INT32_T", 8: "INT64_T", 16: "C_DOUBLE_COMPLEX"}
"""For what is moved: fewer, larger elements, so that counts stay below 2**31 as long as they can."""
INSTEAD = "leave the choice of the algorithm to hocket"
OTHERS = "every algorithm of hocket's gives it to all (such as 'ring' or 'tree'), or omit algorithm="


class MpiReduction(NamedTuple):
    """Names of MPI's, or why it cannot be had."""

    datatype: str = ""
    op: str = ""
    why: str = ""


def reducing(dtype: str, op: str) -> MpiReduction:
    """MPI's way to reduce this."""
    if op in OF_NANS and dtype.startswith("float"):
        return MpiReduction(why=f"MPI's {op} of {dtype} loses a NaN, or gives it to some ranks only; {OTHERS}")
    if dtype not in TYPES:
        return MpiReduction(why=f"MPI cannot reduce {dtype}; {INSTEAD}, or convert to float32")
    known = OPS.get(dtype, ARITHMETIC | ORDER | LOGIC)
    if op not in known:
        return MpiReduction(why=f"MPI has no op {op!r} for {dtype} (it has {', '.join(known)}); {INSTEAD}")
    return MpiReduction(TYPES[dtype], known[op])


def moving(itemsize: int) -> tuple[str, int]:
    """(datatype, how many of it make an element) for what is only moved."""
    return (BY_SIZE[itemsize], 1) if itemsize in BY_SIZE else ("BYTE", itemsize)
