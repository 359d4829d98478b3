"""The launch of a kernel: its arguments as C, its grid, the memory that it wants, and what its status says."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.errors import ArgumentError
from hocket.kernels.gpu.catalogue import Kernel

RANKS = 8  # the most buffers of one call, and ranks of one meeting (cuda.cuh, flags.cuh)
WAYS = 256  # the most operands of a reduction
FLAG_BLOCKS = 64
PHASES = 2
FLAG_BYTES = PHASES * FLAG_BLOCKS * RANKS * 4  # what a rank sets aside for its flags, zeroed once
PIECE = 16384  # bytes of a segment that one block copies (copy.cuh)
BLOCK = 256  # threads of a block, for every kernel
TIMED_OUT, ABORTED = 1, 2


class Pointers(ctypes.Structure):
    """`hk_pointers`: up to eight addresses, one per rank."""

    _fields_ = [("at", ctypes.c_uint64 * RANKS)]


class Ways(ctypes.Structure):
    """`hk_ways`: the addresses of as many operands as there are."""

    _fields_ = [("at", ctypes.c_uint64 * WAYS)]


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
    "f64": ctypes.c_double,
    "hk_pointers": Pointers,
    "hk_ways": Ways,
    "hk_peers": Peers,
}

SEGMENT = np.dtype([("from", "u8"), ("to", "u8"), ("bytes", "u8"), ("first", "u8")])  # hk_segment of copy.cuh


def scratch_bytes(nbytes: int, world: int) -> int:
    """The bytes of one rank's scratch for an allreduce of `nbytes` bytes over `world` ranks."""
    return -(-nbytes // world) + 16


def blocks_bytes(nbytes: int, world: int) -> int:
    """The bytes of one rank's window for a reduce-scatter of `nbytes` bytes, all blocks together."""
    return nbytes + 16 * world


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


def ways(addresses: Sequence[int]) -> Ways:
    """`addresses`, one per operand."""
    return Ways((ctypes.c_uint64 * WAYS)(*addresses))


def segment_table(segments: Sequence[tuple[int, int, int]]) -> tuple[np.ndarray[Any, Any], int]:
    """(from, to, bytes) as the table of hk_copy, which goes into device memory, and the number of its pieces."""
    table = np.array([(*segment, 0) for segment in segments], SEGMENT)
    ends = np.cumsum(-(-table["bytes"].astype(np.int64) // PIECE))
    table["first"][1:] = ends[:-1]
    return table, int(ends[-1]) if len(ends) else 0


def geometry(nbytes: int, multiprocessors: int) -> tuple[int, int]:
    """(grid, block) for a kernel that works on `nbytes` bytes of each buffer: 16 a thread, 16 blocks a processor."""
    return max(1, min(-(-nbytes // (16 * BLOCK)), 16 * multiprocessors)), BLOCK


def meeting_geometry(nbytes: int, multiprocessors: int) -> tuple[int, int]:
    """(grid, block) for a kernel that waits for peers: all its blocks must run at once.  Equal at all ranks."""
    return max(1, min(-(-nbytes // (16 * BLOCK)), multiprocessors, FLAG_BLOCKS)), BLOCK


def explain_status(status: int) -> str:
    """The status word of a kernel that gave up, in words; empty if it did not."""
    if status == 0:
        return ""
    reason = {TIMED_OUT: "no sign in time", ABORTED: "aborted while waiting for a sign"}[status >> 16]
    return f"{reason} from rank {status & 255} in phase {status >> 8 & 255}"
