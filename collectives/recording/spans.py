"""Facts that a span tells as data, beside its text: programs take them from here, and people read the text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class GradientSpan(NamedTuple):
    """A gradient of `hocket.training.Scheduler` is ready, or was waited for."""

    name: str
    nbytes: int
    """0: it was waited for."""
    order: str
    """The policy by which gradients travel: "fifo", "priority", ..."""
    lanes: str
    """A part of the names of the communicators that carry the scheduler's gradients."""


class HealedSpan(NamedTuple):
    """A broken connection was made again."""

    rank: int
    """The rank of the job at its other end."""
    flaps: bool
    """Does it break again and again?"""


AsData = GradientSpan | HealedSpan
KINDS: dict[str, tuple[type[AsData], tuple[type, ...]]] = {
    "gradient": (GradientSpan, (str, int, str, str)), "healed": (HealedSpan, (int, bool)),
}  # fmt: skip
"""By their names in a recording: what they are, and the types of their fields."""


def written(told: AsData | None) -> dict[str, Any]:
    """The facts as a part of a line of JSON.

    >>> written(HealedSpan(2, False)), understood(written(HealedSpan(2, False)))
    ({'healed': [2, False]}, HealedSpan(rank=2, flaps=False))
    """
    return {name: [*told] for name, (kind, _) in KINDS.items() if told is not None and isinstance(told, kind)}


def understood(line: Any) -> AsData | None:
    """The facts that `written` wrote; None where they are not there, or make no sense."""
    for name, (kind, types) in KINDS.items():
        facts = line.get(name) if isinstance(line, Mapping) else None
        if isinstance(facts, list) and [type(fact) for fact in facts] == [*types]:
            return kind(*facts) if all(0 <= fact < 1 << 63 for fact in facts if isinstance(fact, int)) else None
    return None
