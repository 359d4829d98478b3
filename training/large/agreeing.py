"""Agreement of ranks before they begin something together: an error on one of them is raised on all."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import Any

from hocket.errors import ArgumentError, MismatchError


def agree(comm: Any, what: str, say: Callable[[], dict[str, Any]], own: Any = None) -> list[Any]:
    """Compare what `say()` returns on all ranks (JSON); each rank's `own`, which may differ.  Collective.

    Raises the same on all ranks: ArgumentError if `say` raised one anywhere, MismatchError if a field differs.
    """
    try:
        said, wrong = say(), ""
    except ArgumentError as error:
        said, wrong = {}, str(error)
    rows = comm.share([wrong, said, own], what)
    errors: dict[str, list[int]] = {}
    for rank, (text, _, _) in zip(comm.members, rows, strict=True):
        if text:
            errors.setdefault(text, []).append(rank)
    if errors:
        raise ArgumentError(f"{what}: " + "; ".join(f"{text} (on {ranks(who)})" for text, who in errors.items()))
    for field in said:
        values = [row[1].get(field) for row in rows]
        other = next((rank for rank, value in enumerate(values) if value != values[0]), None)
        if other is not None:
            each = [f"{reprlib.repr(values[r])} on rank {comm.members[r]}" for r in (0, other)]
            raise MismatchError(f"{what}: ranks were given different {field}: {each[0]}, {each[1]}; give all the same")
    return [row[2] for row in rows]


def ranks(who: list[int]) -> str:
    """rank 3; ranks 0, 1, 2"""
    return f"rank{'s' if len(who) > 1 else ''} {', '.join(map(str, who))}"
