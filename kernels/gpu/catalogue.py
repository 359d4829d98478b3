"""The CUDA kernels as data: their names, the words that they are compiled with, and their parameters.

Compiles nothing at import and needs no GPU.  source.py makes a kernel's text for a compiler, launch.py its arguments
and geometry.  The arithmetic is that of the CPU kernels, from the same headers: the bits are the same, but for which
NaN a NaN is.

A pointer to elements must be aligned to the element (to the parts of a complex number or a pair); where all of a call
are aligned to 16 bytes, it moves 16 bytes at a time.  The dtypes and ops are rows of kernels/dtypes.py and ops.py.
"""

from __future__ import annotations

import functools
import zlib
from typing import NamedTuple

import numpy as np

from hocket.errors import ArgumentError
from hocket.kernels import dtypes, ops
from hocket.kernels.codecs import CODECS, HALVES, Codec
from hocket.kernels.dtypes import DType


class Module(NamedTuple):
    """A unit of compilation: a .cuh file, and the words it is compiled with."""

    file: str
    defines: tuple[tuple[str, str], ...] = ()


class Kernel(NamedTuple):
    """A kernel: its extern "C" name, its module, and (name, C type) of each parameter; launch.CTYPES has the types."""

    name: str
    module: Module
    params: tuple[tuple[str, str], ...]


_BYTES = Module("bytes.cuh")
COPY = Kernel("hk_copy", _BYTES, (("table", "pointer"), ("segments", "u64"), ("pieces", "u64")))
CHECKSUM = Kernel("hk_checksum", _BYTES, (("from", "pointer"), ("bytes", "u64"), ("sum", "pointer")))
BARRIER = Kernel("hk_barrier", _BYTES, (("peers", "hk_peers"),))
_MEETING = (("peers", "hk_peers"), ("in", "hk_pointers"))
_VECTORS = (("x", "pointer"), ("out", "pointer"), ("count", "u64"))
ALLGATHER = Kernel("hk_allgather", _BYTES, (*_MEETING, *_VECTORS[:2], ("bytes", "u64")))

# The word of elements.h for each dtype that has one of its own.
_WORDS = {
    "bool": "u8",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "complex64": "c64",
    "complex128": "c128",
    "float8_e4m3fn": "e4m3fn",
    "float8_e5m2": "e5m2",
    "float32_int32": "f32_i32",
    "float64_int64": "f64_i64",
    "int32_int32": "i32_i32",
    "int64_int64": "i64_i64",
} | {f"{kind}{8 * size}": f"{kind[0]}{8 * size}" for kind in ("int", "uint") for size in (1, 2, 4, 8)}
_CASTS = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
_KINDS = ("whole", "fp8", "sign", "onebit", "natural", "half_f16", "half_bf16")
"""The words of codec.cuh for those of codecs.py."""
_REDUCE = (("in", "hk_pointers"), ("out", "pointer"), ("count", "u64"), ("k", "i32"))
_MANY = (("in", "hk_ways"), *_REDUCE[1:])
_CONVERT = (("out", "pointer"), ("in", "pointer"), ("count", "u64"), ("factor", "f64"))
_DICE = (("key", "u64"), ("first", "u64"))
_RESIDUAL = (("before", "pointer"), ("after", "pointer"))


def reduce(dtype: str, op: str) -> Kernel:
    """out = in[0] op ... op in[k-1], `count` elements, 1 <= k <= 8; `out` may be exactly one of the inputs."""
    return Kernel(f"hk_reduce_{_pair(dtype, op)}", _fold(dtype, op, "reduce.cuh"), _REDUCE)


def reduce_by(dtype: str, expression: str) -> Kernel:
    """`reduce` by an expression of `a` and `b`, of the dtype's own type; 16- and 8-bit floats are float32 there."""
    name, module = _by(dtype, expression, "reduce.cuh")
    return Kernel(f"hk_reduce_{name}", module, _REDUCE)


def many(kernel: Kernel) -> Kernel:
    """The kernel for many vectors beside `reduce` or `reduce_by`, for 2 <= k <= 256."""
    return Kernel(kernel.name.replace("hk_reduce_", "hk_many_"), kernel.module, _MANY)


class Shots(NamedTuple):
    """Reductions over several devices, by one dtype and op.  Geometry and `count` are the same at all ranks."""

    one_shot: Kernel
    """out = all ranks' x, reduced.  world * n bytes read, one meeting.  Its window holds n bytes."""
    two_shot: Kernel
    """The same by way of scratch[rank], which holds `scratch_bytes`.  2n bytes read, two meetings."""
    reduce_scatter: Kernel
    """out = block `rank` of all ranks' x, reduced; `count` elements of each block.  n bytes read, one meeting.

    Its window holds `blocks_bytes`.
    """


def shots(dtype: str, op: str) -> Shots:
    """The kernels of a built-in op."""
    return _shots(_fold(dtype, op, "meetings.cuh"), _pair(dtype, op))


def shots_by(dtype: str, expression: str) -> Shots:
    """The kernels of a user's expression; see `reduce_by`."""
    name, module = _by(dtype, expression, "meetings.cuh")
    return _shots(module, name)


def _shots(module: Module, name: str) -> Shots:
    two = (*_MEETING, ("scratch", "hk_pointers"), *_VECTORS)
    return Shots(
        Kernel(f"hk_one_shot_{name}", module, (*_MEETING, *_VECTORS)),
        Kernel(f"hk_two_shot_{name}", module, two),
        Kernel(f"hk_reduce_scatter_{name}", module, (*_MEETING, *_VECTORS)),
    )


def scale(dtype: str) -> Kernel:
    """out = in * factor, `count` elements, rounded as scale.h says; `out` may be `in`."""
    row = dtypes.by_name(dtype)
    if row.kind not in ("int", "uint", "float", "complex"):
        raise ArgumentError(f"only numbers can be scaled, got {dtype}")
    word = _WORDS[_real(row)]
    limits: tuple[tuple[str, str], ...] = ()
    if _is_small(row):
        how = "small"
    elif row.kind in ("float", "complex"):
        how = "real"
    elif row.itemsize == 8:
        how = "long"
    else:
        how, name = "int", dtype.upper()
        limits = (("HK_LOW", f"{name}_MIN" if row.kind == "int" else "0"), ("HK_HIGH", f"{name}_MAX"))
    defines = (("HK_DTYPE", dtype), ("HK_STORAGE", word), ("HK_PARTS", _parts(row)), ("HK_SCALE", how), *limits)
    return Kernel(f"hk_scale_{dtype}", Module("scale.cuh", defines), _CONVERT)


def cast(source: str, target: str) -> Kernel:
    """out = in * factor, `count` elements, between float32 and float16, bfloat16 or an fp8; no saturation."""
    if {source, target} not in [{"float32", small} for small in _CASTS]:
        raise ArgumentError(f"a cast is between float32 and one of {', '.join(_CASTS)}; got {source} to {target}")
    defines = (
        ("HK_FROM", _WORDS[source]),
        ("HK_TO", _WORDS[target]),
        ("HK_FROM_DTYPE", source),
        ("HK_TO_DTYPE", target),
    )
    return Kernel(f"hk_cast_{source}_{target}", Module("cast.cuh", defines), _CONVERT)


class Coders(NamedTuple):
    """The kernels of a codec, with the bits of kernels/cpu; elements lie at multiples of four bytes."""

    encode: Kernel
    """`count` floats, each times factor, into elements; random numbers from `key`, counted from `first`."""
    decode: Kernel
    """The floats of elements, each times factor."""
    fold: Kernel
    """out = in[0] + ... + in[k-1], in float32, encoded once; 2 <= k <= 256; `out` may be exactly one of the inputs."""


@functools.cache
def coders(codec: Codec) -> Coders:
    """The kernels of a codec; its seed is the caller's affair."""
    name, module = _coded(codec, "")
    return Coders(
        Kernel(f"hk_encode_{name}", module, (*_CONVERT, *_DICE)),
        Kernel(f"hk_decode_{name}", module, _CONVERT),
        Kernel(f"hk_fold_{name}", module, (*_MANY, *_DICE)),
    )


class Keepers(NamedTuple):
    """`encode` and `fold` that add `before` to what they encode, unless it is 0, and leave in `after` what is lost."""

    encode: Kernel
    fold: Kernel


@functools.cache
def keepers(codec: Codec) -> Keepers:
    """The keepers of a codec."""
    name, module = _coded(codec, "kept_", ("HK_RESIDUAL", "1"))
    return Keepers(
        Kernel(f"hk_encode_{name}", module, (*_CONVERT[:3], *_DICE, *_RESIDUAL)),
        Kernel(f"hk_fold_{name}", module, (*_MANY, *_DICE, *_RESIDUAL)),
    )


def _coded(codec: Codec, prefix: str, *more: tuple[str, str]) -> tuple[str, Module]:
    """The name of a codec's kernels, and their module."""
    clip = int(np.float32(codec.clip).view(np.uint32))
    told = {
        "BLOCK": codec.block, "BYTES": codec.itemsize, "WIDTH": codec.bits, "LEVELS": codec.levels, "NORM": codec.norm,
        "CLIP": f"{clip}u", "STOCHASTIC": int(codec.stochastic),
    }  # fmt: skip
    kind = _KINDS[codec.code]
    name = prefix + "_".join(map(str, (kind, *told.values())))
    defines = {"CODEC": name, "KIND": kind, **told}
    return name, Module("codec.cuh", (*((f"HK_{word}", str(value)) for word, value in defines.items()), *more))


@functools.cache
def catalogue() -> tuple[Kernel, ...]:
    """Every kernel there is; of codecs, those of the ones that have names."""
    pairs = [(row.name, op.name) for row in dtypes.DTYPES for op in ops.OPS if row.kind in op.kinds]
    numbers = [row.name for row in dtypes.DTYPES if row.kind in ("int", "uint", "float", "complex")]
    return (
        COPY,
        CHECKSUM,
        BARRIER,
        ALLGATHER,
        *(kernel for pair in pairs for kernel in (reduce(*pair), many(reduce(*pair)))),
        *(kernel for pair in pairs for kernel in shots(*pair)),
        *(scale(dtype) for dtype in numbers),
        *(cast(*ends) for small in _CASTS for ends in (("float32", small), (small, "float32"))),
        *(kernel for codec in (*CODECS, *HALVES.values()) for kernel in (*coders(codec), *keepers(codec))),
    )


def _pair(dtype: str, op: str) -> str:
    return f"{ops.by_name(op).name}_{dtype}"


def _real(row: DType) -> str:
    return {"complex64": "float32", "complex128": "float64"}.get(row.name, row.name)


def _is_small(row: DType) -> bool:
    """A float that is computed with in float32?"""
    return row.kind == "float" and row.itemsize < 4


def _parts(row: DType) -> str:
    return "2" if row.kind == "complex" else "1"


def _by(dtype: str, expression: str, file: str) -> tuple[str, Module]:
    """The name of an expression and a dtype, and their module."""
    row = dtypes.by_name(dtype)
    if row.kind not in ("bool", "int", "uint", "float"):
        raise ArgumentError(f"an expression combines bool, integers or floats, got {dtype}")
    text, word = " ".join(expression.split()), _WORDS[dtype]
    name = f"by_{zlib.crc32(text.encode()):08x}"
    defines = (
        ("HK_DTYPE", dtype),
        ("HK_OP", name),
        ("HK_STORAGE", word),
        ("HK_NUMBER", "f32" if _is_small(row) else word),
        ("HK_COMBINE(a, b)", f"(({text}) != 0)" if row.kind == "bool" else f"({text})"),
        ("HK_PARTS", "1"),
    )
    return f"{name}_{dtype}", Module(file, defines)


def _fold(dtype: str, op: str, file: str) -> Module:
    """The module of one pair, put together from elements.h as table.h does it for the CPU."""
    row = dtypes.by_name(dtype)
    op = ops.OPS[ops.lookup(op, row)].name
    unsigned = f"u{8 * row.itemsize}"
    word, parts = _WORDS[row.name], "1"
    number = "f32" if _is_small(row) else word
    combine = f"{op}_{number}"
    if row.kind == "bool":
        truth = {"sum": "lor", "max": "lor", "bor": "lor", "prod": "land", "min": "land", "band": "land"}
        combine = f"{truth.get(op, 'lxor') if op not in ('land', 'lor') else op}_u8"
    elif op in ("land", "lor", "lxor"):
        combine = f"{op}_{word if row.kind == 'float' else unsigned}"
        word = number = unsigned
    elif row.kind in ("int", "uint") and op not in ("min", "max"):
        word = number = unsigned
        combine = f"{op}_{unsigned}"
    elif row.kind == "complex" and op == "sum":
        word = number = _WORDS[_real(row)]
        combine, parts = f"sum_{word}", "2"
    defines = (
        ("HK_DTYPE", dtype),
        ("HK_OP", op),
        ("HK_STORAGE", word),
        ("HK_NUMBER", number),
        ("HK_COMBINE", combine),
        ("HK_PARTS", parts),
    )
    return Module(file, defines)
