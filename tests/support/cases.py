"""Many values in one test: a case of pytest's own costs three milliseconds, more than most of these take."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def more(*values: Any) -> list[Any]:
    """The values (tuples: of several arguments) that `make test` leaves out, as others show nearly as much."""
    return [pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=pytest.mark.more) for each in values]


def each(name: str, values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The test runs with each of these values as its argument `name`; a failure tells which."""
    values = [*values]

    def over(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def all_of_them(**others: Any) -> None:
            for value in values:
                try:
                    test(**others, **{name: value})
                except Exception as error:
                    raise AssertionError(f"with {name}={value!r}: {error}") from error

        signature = inspect.signature(test)
        left = [each for each in signature.parameters.values() if each.name != name]
        all_of_them.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return all_of_them

    return over
