"""Checks of arguments, and the words of errors about them: the same words in every folder.

Part of the floor, like errors.py: imports nothing else of hocket, may be imported by all of it.
"""

from __future__ import annotations

import contextlib
import operator
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hocket.errors import ArgumentError

LONGEST = 1e9
"""Seconds, 30 years: a longer limit, or none (math.inf), means this, and can still be counted in nanoseconds."""


def whole(value: Any, what: str) -> int:
    """`value` as an int, if it is a whole number: NumPy's and torch's integers are, True is 1, and 1.0 is none."""
    try:
        return operator.index(value)
    except TypeError:
        raise ArgumentError(f"{what}={reprlib.repr(value)} must be a whole number") from None


def rank_in(size: int, value: Any, what: str) -> int:
    """`value`, an integer of any kind, as a rank of a communicator of `size`."""
    try:
        found = operator.index(value)
    except TypeError:
        found = -1
    if not 0 <= found < size:
        raise ArgumentError(f"{what}={reprlib.repr(value)} is not a rank of this communicator (0..{size - 1})")
    return found


def wholes(values: Any, what: str) -> list[int]:
    """`values`, a sequence or an array of whole numbers, as ints."""
    try:
        return [operator.index(each) for each in values]
    except TypeError:
        raise ArgumentError(f"{what}={reprlib.repr(values)} must be a sequence of whole numbers") from None


def texts(values: Any, what: str) -> list[str]:
    """`values`, a sequence of names, and not one of them alone."""
    if isinstance(values, Iterable) and not isinstance(values, str):
        given = list(values)
        found = [each for each in given if isinstance(each, str)]
        if len(found) == len(given):
            return found
    raise ArgumentError(f"{what}={reprlib.repr(values)} must be a sequence of names")


@contextlib.contextmanager
def installed(extra: str) -> Iterator[None]:
    """A block of imports: where a package is not there, the error says what to install."""
    try:
        yield
    except ModuleNotFoundError as why:
        text = f"hocket.{extra}: {why}: pip install 'hocket[{extra}]'"
        raise ModuleNotFoundError(text, name=why.name, path=why.path) from None


def printable(text: str, most: int = 120) -> str:
    """A name of somebody else's, for a terminal: nothing in it moves the cursor, changes colours or turns the text
    around."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text[:most])


def seen_through(array: Any, what: str) -> str:
    """In words, that it is one of NumPy's masked arrays, whose numbers would be read below the mask; "": it is none."""
    if not (hasattr(array, "mask") and hasattr(array, "filled")):
        return ""
    return f"{what} is a masked array, whose mask would be lost: pass its .filled(value), or its .data"


def unmasked(array: Any, what: str) -> None:
    """Raise ArgumentError for a masked array."""
    if wrong := seen_through(array, what):
        raise ArgumentError(wrong)


def optional(value: Any, what: str) -> str | None:
    """`value`, if it is a text or None."""
    if not (value is None or isinstance(value, str)):
        raise ArgumentError(f"{what}={reprlib.repr(value)} must be a string")
    return value


def seconds(value: Any, what: str, otherwise: str = "") -> float:
    """`value` as a time, more than 0; `otherwise`: what None would mean, if it may be None."""
    try:
        found = min(float(value), LONGEST) if not isinstance(value, str) else 0.0
    except (TypeError, ValueError, OverflowError):
        found = 0.0
    if not found > 0:
        none = f" (None: {otherwise})" if otherwise else ""
        raise ArgumentError(f"{what}={reprlib.repr(value)} must be a number of seconds above 0{none}")
    return found


def kind(value: Any) -> str:
    """The kind of `value`, for a text: "an int", "a list", "None"."""
    name = type(value).__name__
    if value is None:
        return "None"
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def choices(name: object, known: Iterable[str], synonyms: Mapping[str, str] | None = None) -> str:
    """The end of an error about a name that is not in `known`: with all of them, and the one that was probably meant.

    `synonyms`: other words, which are not told, and what they mean among those known.

    >>> choices("alreduce", ["allreduce", "reduce"])
    "known: allreduce, reduce; did you mean 'allreduce'?"
    """
    from difflib import get_close_matches  # slow to import, and only errors need it

    names = list(known)
    spoken = {each.lower(): each for each in names} | dict(synonyms or {})
    near = get_close_matches(str(name).lower(), spoken, 1)
    meant = f"; did you mean {spoken[near[0]]!r}?" if near else ""
    return f"known: {', '.join(names) or '(empty)'}{meant}"


def some_of(names: Sequence[object], most: int) -> str:
    """The first `most` of them, and how many more there are.

    >>> some_of([3, 4, 5], 2)
    '3, 4 and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def human(nbytes: int) -> str:
    """8 B, 64 KiB, 1.76 MiB: three digits, if there are no more before the point."""
    size, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if size >= 100 else f"{size:.3g} {unit}"
