"""The CUDA kernels as data: their names, sources, parameters and launch geometry.

Compiles nothing at import and needs no GPU; whoever launches takes the source from `module_source` (for NVRTC,
CuPy's RawModule or nvcc) and the parameters from `Kernel.params`.  The arithmetic is that of the CPU kernels, from the
same headers: the bits are the same, but for which NaN a NaN is.

A pointer to elements must be aligned to the element (to the parts of a complex number or a pair); where all of a call
are aligned to 16 bytes, it moves 16 bytes at a time.  The dtypes and ops are rows of kernels/dtypes.py and ops.py.
"""

from __future__ import annotations

import ctypes
import functools
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hocket.errors import ArgumentError
from hocket.kernels import dtypes, ops
from hocket.kernels.dtypes import DType

HERE = Path(__file__).parent
RANKS = 8  # the most buffers of one call, and ranks of one meeting (cuda.cuh, flags.cuh)
FLAG_BLOCKS = 64
PHASES = 2
FLAG_BYTES = PHASES * FLAG_BLOCKS * RANKS * 4  # what a rank sets aside for its flags, zeroed once
PIECE = 16384  # bytes of a segment that one block copies (copy.cuh)
GROUP = 256  # elements that share one scale (quantise.cuh)
BLOCK = 256  # threads of a block, for every kernel
TIMED_OUT, ABORTED = 1, 2

OPTIONS = ("-std=c++17", "-fmad=false", "-device-int128")


class Module(NamedTuple):
    """What is compiled at once: a .cuh file, and the words it is compiled with."""

    file: str
    defines: tuple[tuple[str, str], ...] = ()


class Kernel(NamedTuple):
    """A kernel: its extern "C" name, its module, and (name, C type) of each parameter; CTYPES has the types."""

    name: str
    module: Module
    params: tuple[tuple[str, str], ...]


class Pointers(ctypes.Structure):
    """`hk_pointers`: up to eight addresses, one per rank."""

    _fields_ = [("at", ctypes.c_uint64 * RANKS)]


class Peers(ctypes.Structure):
    """`hk_peers` of flags.cuh: whom a kernel meets, and how long it waits."""

    _fields_ = [
        ("flags", ctypes.c_uint64 * RANKS),
        ("status", ctypes.c_uint64),
        ("host", ctypes.c_uint64),
        ("limit_ns", ctypes.c_uint64),
        ("epoch", ctypes.c_uint32),
        ("rank", ctypes.c_int32),
        ("world", ctypes.c_int32),
    ]


CTYPES: dict[str, Any] = {
    "pointer": ctypes.c_uint64,
    "u64": ctypes.c_uint64,
    "i32": ctypes.c_int32,
    "f32": ctypes.c_float,
    "f64": ctypes.c_double,
    "hk_pointers": Pointers,
    "hk_peers": Peers,
}

SEGMENT = np.dtype([("from", "u8"), ("to", "u8"), ("bytes", "u8"), ("first", "u8")])  # hk_segment of copy.cuh

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
_CODES = {"int8": ("i8", "127.0f"), "float8_e4m3fn": ("e4m3fn", "448.0f")}


_REDUCE = (("in", "hk_pointers"), ("out", "pointer"), ("count", "u64"), ("k", "i32"))


def reduce(dtype: str, op: str) -> Kernel:
    """out = in[0] op ... op in[k-1], `count` elements, 1 <= k <= 8; `out` may be exactly one of the inputs."""
    return Kernel(f"hk_reduce_{_pair(dtype, op)}", _fold(dtype, op, "reduce.cuh"), _REDUCE)


def reduce_by(dtype: str, expression: str) -> Kernel:
    """`reduce` by an expression of `a` and `b`, of the dtype's own type; 16- and 8-bit floats are float32 there."""
    name, module = _by(dtype, expression, "reduce.cuh")
    return Kernel(f"hk_reduce_{name}", module, _REDUCE)


class Shots(NamedTuple):
    """Reductions over several devices, by one dtype and op.  Geometry and `count` are the same at all ranks."""

    one_shot: Kernel
    """out = all ranks' x, reduced.  World n bytes read, one meeting.  Its window holds n bytes."""
    two_shot: Kernel
    """The same by way of scratch[rank], which holds `scratch_bytes`.  2n bytes read, two meetings."""
    reduce_scatter: Kernel
    """out = block `rank` of all ranks' x, reduced; `count` elements of each block.  n bytes read, one meeting.

    Its window holds `blocks_bytes`.
    """


def shots(dtype: str, op: str) -> Shots:
    """Those of a built-in op."""
    return _shots(_fold(dtype, op, "meetings.cuh"), _pair(dtype, op))


def shots_by(dtype: str, expression: str) -> Shots:
    """Those of a user's expression; see `reduce_by`."""
    name, module = _by(dtype, expression, "meetings.cuh")
    return _shots(module, name)


def _shots(module: Module, name: str) -> Shots:
    two = (*_MEETING, ("scratch", "hk_pointers"), *_VECTORS)
    return Shots(
        Kernel(f"hk_one_shot_{name}", module, (*_MEETING, *_VECTORS)),
        Kernel(f"hk_two_shot_{name}", module, two),
        Kernel(f"hk_reduce_scatter_{name}", module, (*_MEETING, *_VECTORS)),
    )


def scratch_bytes(nbytes: int, world: int) -> int:
    """What one rank's scratch must hold for an allreduce of `nbytes` bytes over `world` ranks."""
    return -(-nbytes // world) + 16


def blocks_bytes(nbytes: int, world: int) -> int:
    """What one rank's window must hold for a reduce-scatter of `nbytes` bytes, all blocks together."""
    return nbytes + 16 * world


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
    params = (("out", "pointer"), ("in", "pointer"), ("count", "u64"), ("factor", "f64"))
    return Kernel(f"hk_scale_{dtype}", Module("scale.cuh", defines), params)


def cast(source: str, target: str) -> Kernel:
    """out = in * scale, `count` elements, between float32 and float16, bfloat16 or an fp8; no saturation."""
    if {source, target} not in [{"float32", small} for small in _CASTS]:
        raise ArgumentError(f"a cast is between float32 and one of {', '.join(_CASTS)}; got {source} to {target}")
    defines = (
        ("HK_FROM", _WORDS[source]),
        ("HK_TO", _WORDS[target]),
        ("HK_FROM_DTYPE", source),
        ("HK_TO_DTYPE", target),
    )
    params = (("out", "pointer"), ("in", "pointer"), ("count", "u64"), ("scale", "f32"))
    return Kernel(f"hk_cast_{source}_{target}", Module("cast.cuh", defines), params)


def quantise(dtype: str, code: str) -> Kernel:
    """`count` elements to as many bytes and ceil(count / 256) float32 scales; quantise.cuh has the law."""
    params = (("codes", "pointer"), ("scales", "pointer"), ("in", "pointer"), ("count", "u64"))
    return Kernel(f"hk_quantise_{dtype}_{code}", _quantised(dtype, code), params)


def dequantise(dtype: str, code: str) -> Kernel:
    """out = codes[0] * scales[0] + ... + codes[k-1] * scales[k-1], in float32, left to right, rounded once."""
    params = (
        ("out", "pointer"),
        ("codes", "hk_pointers"),
        ("scales", "hk_pointers"),
        ("count", "u64"),
        ("k", "i32"),
    )
    return Kernel(f"hk_dequantise_{dtype}_{code}", _quantised(dtype, code), params)


@functools.cache
def catalogue() -> tuple[Kernel, ...]:
    """Every kernel there is."""
    pairs = [(row.name, op.name) for row in dtypes.DTYPES for op in ops.OPS if row.kind in op.kinds]
    numbers = [row.name for row in dtypes.DTYPES if row.kind in ("int", "uint", "float", "complex")]
    wides = [(dtype, code) for dtype in ("float32", "float16", "bfloat16") for code in _CODES]
    return (
        COPY,
        CHECKSUM,
        BARRIER,
        ALLGATHER,
        *(reduce(*pair) for pair in pairs),
        *(kernel for pair in pairs for kernel in shots(*pair)),
        *(scale(dtype) for dtype in numbers),
        *(cast(*ends) for small in _CASTS for ends in (("float32", small), (small, "float32"))),
        *(make(*wide) for make in (quantise, dequantise) for wide in wides),
    )


@functools.cache
def module_source(module: Module) -> tuple[str, tuple[str, ...]]:
    """One text without any #include left to resolve under NVRTC, and the options to compile it with.

    Inlined, so that a cache that knows only the text (as CuPy's) compiles anew when a header changes.
    """
    seen: set[str] = set()
    defines = "".join(f"#define {name} {value}\n" for name, value in module.defines)
    return defines + _inlined(module.file, seen), OPTIONS


def arguments(kernel: Kernel, *values: Any) -> tuple[Any, list[Any]]:
    """The `void **kernelParams` of cuLaunchKernel, and the objects that must live until the launch returns."""
    if len(values) != len(kernel.params):
        raise ArgumentError(f"{kernel.name} takes {len(kernel.params)} arguments, got {len(values)}")
    kept = [
        value if isinstance(value, ctypes.Structure) else CTYPES[kind](value)
        for value, (_, kind) in zip(values, kernel.params, strict=True)
    ]
    return (ctypes.c_void_p * len(kept))(*map(ctypes.addressof, kept)), kept


def pointers(addresses: Sequence[int]) -> Pointers:
    """`addresses`, one per rank."""
    if len(addresses) > RANKS:
        raise ArgumentError(f"one kernel takes at most {RANKS} buffers, got {len(addresses)}")
    return Pointers((ctypes.c_uint64 * RANKS)(*addresses))


def segment_table(segments: Sequence[tuple[int, int, int]]) -> tuple[np.ndarray[Any, Any], int]:
    """(from, to, bytes) as the table of hk_copy, which goes into device memory, and the number of its pieces."""
    table = np.array([(*segment, 0) for segment in segments], SEGMENT)
    ends = np.cumsum(-(-table["bytes"].astype(np.int64) // PIECE))
    table["first"][1:] = ends[:-1]
    return table, int(ends[-1]) if len(ends) else 0


def geometry(nbytes: int, multiprocessors: int) -> tuple[int, int]:
    """(grid, block) for a kernel that works on `nbytes` bytes of each buffer: 16 a thread, 8 blocks a processor."""
    return max(1, min(-(-nbytes // (16 * BLOCK)), 8 * multiprocessors)), BLOCK


def meeting_geometry(nbytes: int, multiprocessors: int) -> tuple[int, int]:
    """(grid, block) for a kernel that waits for peers: all its blocks must run at once.  Equal at all ranks."""
    return max(1, min(-(-nbytes // (16 * BLOCK)), multiprocessors, FLAG_BLOCKS)), BLOCK


def explain_status(status: int) -> str:
    """What the status word of a kernel that gave up says; empty if it did not."""
    if status == 0:
        return ""
    reason = {TIMED_OUT: "no sign in time", ABORTED: "aborted while waiting for a sign"}[status >> 16]
    return f"{reason} from rank {status & 255} in phase {status >> 8 & 255}"


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


def _quantised(dtype: str, code: str) -> Module:
    if dtype not in ("float32", "float16", "bfloat16") or code not in _CODES:
        raise ArgumentError(
            f"float32, float16 and bfloat16 are quantised, to {' or '.join(_CODES)}; got {dtype}, {code}"
        )
    word, largest = _CODES[code]
    defines = (
        ("HK_WIDE", _WORDS[dtype]),
        ("HK_CODE", word),
        ("HK_WIDE_DTYPE", dtype),
        ("HK_CODE_DTYPE", code),
        ("HK_LARGEST", largest),
    )
    return Module("quantise.cuh", defines)


def _inlined(name: str, seen: set[str]) -> str:
    """The file, with those of ours that it includes in their place, each once; lines keep their numbers."""
    out = [f'#line 1 "{name}"']
    seen.add(name)
    path = HERE.parents[1] / name if "/" in name else HERE / name  # kernels/elements.h, or a neighbour
    for number, line in enumerate(path.read_text().splitlines(), 1):
        included = re.fullmatch(r'#include "([\w/]+\.c?u?h)"', line)
        if included is None:
            out.append(line)
        elif included[1] not in seen:
            out += [_inlined(included[1], seen), f'#line {number + 1} "{name}"']
        else:
            out.append("")
    return "\n".join(out) + "\n"
