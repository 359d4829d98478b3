"""Python values as JSON: numbers, texts, None, and lists, tuples and dicts of them, which come back as they were.

What ranks tell each other goes this way, not by pickle: who unpickles runs what the sender wrote.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

LEAVES = (str, int, float, bool, type(None))
Turn = Callable[[Any], Any]


def text(value: Any, other: Turn) -> str:
    """`value` as JSON.  `other`: makes JSON of what is not one of the above."""
    return json.dumps(_told(value, other))


def value(told: str, other: Turn) -> Any:
    """The value that `text` was given.  `other`: makes a value of what the other side's made."""
    return _made(json.loads(told), other)


def _told(value: Any, other: Turn) -> Any:
    kind = type(value)
    if kind in LEAVES:
        return value
    if kind in (list, tuple):
        return [kind.__name__, *(_told(each, other) for each in value)]
    if kind is dict:
        return ["dict", *([_told(key, other), _told(each, other)] for key, each in value.items())]
    return ["other", other(value)]


def _made(told: Any, other: Turn) -> Any:
    if not isinstance(told, list):
        return told
    kind, *parts = told
    if kind == "dict":
        return {_made(key, other): _made(each, other) for key, each in parts}
    if kind == "other":
        return other(parts[0])
    made = [_made(each, other) for each in parts]
    return tuple(made) if kind == "tuple" else made
