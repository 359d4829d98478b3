"""Laws of machines without I/O: no schedule breaks one, and each breaks without the line that it rests on."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Row = tuple[str, str, str | tuple[str, ...], int]
"""A line, another in its place, how the words of the law that breaks then begin, and a seed that shows it."""
FURTHER = 3000
"""Seeds that are tried when that of the row shows it no more, as other lines have changed."""


class Broken(AssertionError):
    """A law does not hold; which one is its first word."""


def without(module: Any, line: str = "", instead: str = "", **named: Any) -> Any:
    """A copy of this module with `instead` for a line that it has once, and with other values for some names."""
    source = Path(module.__file__).read_text()
    assert not line or source.count(line) == 1, line
    made = types.ModuleType(f"{module.__name__}_without_a_line")
    sys.modules[made.__name__] = made  # dataclasses look there
    exec(compile(source.replace(line, instead) if line else source, made.__name__, "exec"), made.__dict__)
    vars(made).update(named)
    return made


def must_hold(simulate: Callable[[int], object], seeds: Iterable[int]) -> None:
    for seed in seeds:
        try:
            simulate(seed)
        except Broken as why:
            raise AssertionError(f"seed {seed}: {why}") from None


def must_break(module: Any, row: Row, simulate: Callable[[Any, int], object]) -> None:
    line, instead, law, seed = row
    code = without(module, line, instead)
    for each in (seed, *range(FURTHER)):
        try:
            simulate(code, each)
        except Broken as why:
            assert str(why).startswith(law), f"another law broke: {why}"
            return
    raise AssertionError(f"with {instead!r} for {line!r} no law breaks")
