"""Small tensors of one dtype and op are carried out as one: a call costs as much as thousands of elements."""

from __future__ import annotations

from collections.abc import Sequence

from hocket.training.agreeing.request import Request

ALONE = 1 << 20
"""Bytes from which a tensor goes by itself: it would be copied into the buffer and out, and a call costs less."""


def fused(ready: Sequence[Request], threshold: int) -> list[list[Request]]:
    """Which of these go together: allreduces of equal dtype, op, scales and codec, up to `threshold` bytes.

    Each group stands where its first one stood.
    """
    groups: list[list[Request]] = []
    room: dict[tuple[object, ...], tuple[list[Request], int]] = {}
    for request in ready:
        key = _key(request)
        nbytes = request.nbytes
        if key is None or nbytes >= min(ALONE, threshold):
            groups.append([request])
            continue
        group, filled = room.get(key, ([], 0))
        if not group or filled + nbytes > threshold:
            group, filled = [], 0
            groups.append(group)
        group.append(request)
        room[key] = group, filled + nbytes
    return groups


def _key(request: Request) -> tuple[object, ...] | None:
    """The key of those that go together; None: it goes alone."""
    if request.kind != "allreduce" or request.op == "adasum":
        return None
    dtype = request.parts[0].dtype
    if any(part.dtype != dtype for part in request.parts):
        return None
    return dtype, request.op, request.prescale, request.postscale, request.codec
