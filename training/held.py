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
        self._arrays, self._first = arrays, dict(arrays)

    def check(self) -> None:
        for name, first in self._first.items():
            if self._arrays.get(name) is not first:
                raise ArgumentError(
                    f"{name!r} is another array than at the beginning: change it in place, [{name!r}][...] = x"
                )
