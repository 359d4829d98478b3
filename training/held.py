"""A caller's arrays by name, which a loop changes in place: an array that was put in the place of one is an error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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

    def check(self, names: Iterable[str] | None = None) -> None:
        """Raise ArgumentError, on this rank, for the first of these names (default all) whose array is another one."""
        for name in self._first if names is None else names:
            first, address = self._first[name]
            if self._arrays.get(name) is not first or _address(first) != address:
                raise ArgumentError(
                    f"{name!r} is another array than at the beginning: change it in place, [{name!r}][...] = x"
                )


def _address(array: Any) -> int | None:
    """A torch tensor may get other memory (`.to(device)` of its module); None: this is no tensor."""
    return array.data_ptr() if hasattr(array, "data_ptr") else None
