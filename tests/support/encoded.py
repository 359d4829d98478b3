"""What each codec makes of float32, in NumPy: the laws of kernels/cpu/blocks.h and convert.h told a second time."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
SMALL = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}
BLOCKS: dict[str, tuple[int, int]] = {"int8": (256, 127), "fp8": (256, 448), "int4": (128, 7)}
"""Floats with one scale, and the largest code."""
UNIT = {name: float(ml_dtypes.finfo(dtype).eps) for name, dtype in SMALL.items()}
UNIT |= {"int8": 0.51 / 127, "fp8": 1.02 / 16, "int4": 0.51 / 7}
"""The largest error of one encoding, as a part of the element's magnitude, or of its block's largest."""


def blocks_of(x: Array, block: int) -> Array:
    """In rows, the last of which is filled up with zeros."""
    rows = np.zeros((-(-len(x) // block), block), np.float32)
    rows.reshape(-1)[: len(x)] = x
    return rows


def encoded(x: Array, name: str) -> tuple[Array, Array]:
    """The scale of each block, and its codes as they are in the wire's dtype."""
    block, most = BLOCKS[name]
    rows = blocks_of(x, block)
    with np.errstate(all="ignore"):
        scales = np.abs(rows).max(1, initial=0, keepdims=True) / np.float32(most)
        fine = np.isfinite(scales) & (scales > 0)
        scaled = np.where(fine, rows / scales, 0)
    scaled = np.clip(scaled, -most, most).astype(np.float32)
    return scales, scaled.astype(ml_dtypes.float8_e4m3fn) if name == "fp8" else np.rint(scaled).astype(np.int8)


def sent(x: Array, name: str) -> Array:
    """x as another rank gets it."""
    if name in SMALL:
        return x.astype(SMALL[name]).astype(np.float32)
    scales, codes = encoded(x, name)
    with np.errstate(invalid="ignore"):
        return (codes.astype(np.float32) * scales).reshape(-1)[: len(x)]


def wire_bytes(n: int, name: str) -> int:
    """What n floats take on the wire."""
    if name in SMALL:
        return 2 * n
    block = BLOCKS[name][0]
    return -(-n // block) * (4 + (block // 2 if name == "int4" else block))


def room(given: list[Array], name: str, encodings: int) -> Array:
    """How far a sum of these may be from the exact one."""
    magnitude = sum(np.abs(each) for each in given)
    if name in BLOCKS and len(magnitude):
        block = BLOCKS[name][0]
        magnitude = np.repeat(blocks_of(magnitude, block).max(1), block)[: len(magnitude)]
    return encodings * (UNIT[name] * magnitude + 1e-7)  # the last: subnormals of fp16
