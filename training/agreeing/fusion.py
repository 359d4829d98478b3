"""Small tensors of one dtype and op are carried out as one: a call costs as much as thousands of elements."""

from __future__ import annotations

from collections.abc import Sequence

from hocket.training.agreeing.request import Request
from hocket.training.buckets import filled

ALONE = 1 << 20
"""Bytes from which a tensor goes by itself: it would be copied into the buffer and out, and a call costs less."""


def fused(ready: Sequence[Request], threshold: int) -> list[list[Request]]:
    """Which of these go together: allreduces of equal dtype, op, scales and codec, up to `threshold` bytes.

    Each group stands where its first one stood.
    """
    most = min(ALONE, threshold)
    return filled(ready, lambda each: _key(each) if each.nbytes < most else None, lambda each: each.nbytes, threshold)


def _key(request: Request) -> tuple[object, ...] | None:
    """The key of those that go together; None: it goes alone."""
    if request.kind != "allreduce" or request.op == "adasum":
        return None
    dtype = request.parts[0].dtype
    if any(part.dtype != dtype for part in request.parts):
        return None
    return dtype, request.op, request.prescale, request.postscale, request.codec
