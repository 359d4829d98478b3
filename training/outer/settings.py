"""Settings of an outer loop that make no sense, as far as one rank can tell."""

from __future__ import annotations

from hocket.arguments import choices, whole
from hocket.errors import ArgumentError


def check(every: int, fragments: int, delay: int, mix: float, weight: str | None, by: str) -> None:
    """Raises ArgumentError."""
    if whole(every, "every") < 1:
        raise ArgumentError(f"every={every} must be at least 1: the steps between two rounds of a fragment")
    if every % fragments:
        raise ArgumentError(f"every={every} must be a multiple of the {fragments} fragments")
    if not 0 <= whole(delay, "delay") < every // fragments:
        raise ArgumentError(
            f"delay={delay} must be at least 0 and below every / fragments = {every // fragments}: "
            "a round ends before the next begins"
        )
    if not 0 <= mix < 1:
        raise ArgumentError(f"mix={mix!r} must be at least 0 and below 1: the part of the parameters that stays")
    if weight not in (None, "count"):
        raise ArgumentError(f"weight={weight!r} is unknown; {choices(weight, ['count', 'None'])}")
    if by not in ("steps", "count"):
        raise ArgumentError(f"by={by!r} is unknown; {choices(by, ['steps', 'count'])}")
