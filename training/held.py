"""A caller's arrays by name, which a loop changes in place: an array that was put in the place of one is an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hocket.errors import ArgumentError


class Held:
    """`arrays`: the caller's own mapping, and what it held at the beginning.

    >>> import numpy as np
    >>> theta = {"w": np.zeros(2)}
    >>> held = Held(theta)
    >>> theta["w"] -= 1                     # in place: the array that the loop averages
    >>> held.check()
    >>> theta["w"] = theta["w"] - 1         # a new array, of which the loop knows nothing
    >>> held.check()
    Traceback (most recent call last):
    hocket.errors.ArgumentError: 'w' is another array than at the beginning: change it in place, ['w'][...] = x
    """

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._arrays = arrays
        self._first = {name: (array, _address(array)) for name, array in arrays.items()}

    def first(self, name: str) -> Any:
        """The array of this name."""
        return self._first[name][0]

    def wrong(self) -> str:
        """In words, what is not as it was: an array is another one, or one has come; "": nothing."""
        for name, (first, address) in self._first.items():
            if self._arrays.get(name) is not first or _address(first) != address:
                return f"{name!r} is another array than at the beginning: change it in place, [{name!r}][...] = x"
        new = next((name for name in self._arrays if name not in self._first), None)
        return "" if new is None else f"{new!r} was not there, or frozen, when this was made: make it anew"

    def check(self) -> None:
        """Raise ArgumentError, on this rank, if something is wrong."""
        if wrong := self.wrong():
            raise ArgumentError(wrong)


def _address(array: Any) -> int | None:
    """A torch tensor may get other memory (`.to(device)` of its module); None: this is no tensor."""
    return array.data_ptr() if hasattr(array, "data_ptr") else None
