"""Requests of one name that do not fit together, in words that name the ranks and both requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hocket.training.agreeing.request import Request

FREE_ROWS = ("allgather", "alltoall")
"""Collectives whose tensors may have different numbers of rows."""
TERMS = {
    "op": "reduce op", "root": "root rank", "prescale": "prescale factor", "postscale": "postscale factor",
    "codec": "compression",
}  # fmt: skip


def found(requests: Mapping[int, Request], joined: bool) -> str | None:
    """The fault in all ranks' requests of one name; None: nothing.  `joined`: are
    some missing, as they have joined?"""
    (first, model), *others = sorted(requests.items())
    for rank, request in others:
        what = _difference(model, request)
        if what:
            return _told(model.name, what, {first: model, rank: request})
    if joined and model.kind not in ("allreduce", "barrier"):
        return f"{model.kind} of {model.name!r} is not possible after a rank has joined: only allreduce is"
    return None


def calls(requests: Mapping[int, Request]) -> dict[int, str]:
    """By rank, what it called: for MismatchError."""
    return {rank: request.words() for rank, request in sorted(requests.items())}


def _difference(one: Request, other: Request) -> str | None:
    if one.kind != other.kind:
        return "collectives"
    if len(one.parts) != len(other.parts):
        return "numbers of tensors"
    if [part.dtype for part in one.parts] != [part.dtype for part in other.parts]:
        return "dtypes"
    if _fixed(one) != _fixed(other):
        return "shapes"
    return next((f"{term}s" for field, term in TERMS.items() if getattr(one, field) != getattr(other, field)), None)


def _fixed(request: Request) -> list[Any]:
    """The part that all ranks' shapes have in common."""
    shapes = [part.shape for part in request.parts]
    return [(len(shape), shape[1:]) for shape in shapes] if request.kind in FREE_ROWS else list(shapes)


def _told(name: str, what: str, two: Mapping[int, Request]) -> str:
    lines = "".join(f"\n  rank {rank} called {request.words()}" for rank, request in two.items())
    return f"the ranks submitted different {what} under the name {name!r}:{lines}"
