"""The cost of each test function, in tests/record.json; the order of a run, and which tests are quick, come from it.

A line is a file, and has of each function: CPU and wall seconds of all its cases, the processes that it starts, and
words: "torch" (it imports it), "clock" (it compares times).  `make test` writes a function anew when a figure has moved
by more than a factor of 2, and drops what is gone; a change of the file is committed with what caused it.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest

PATH = Path(__file__).parents[2] / "record.json"
FLOOR = 0.25
"""Seconds: below, a figure may be anything."""
LONG = 20.0
"""Wall seconds of a file whose functions are units of their own."""
GUESS = 1.0
"""Seconds of a function that has no record."""
READS = r"(?:monotonic|perf_counter|time\.time)\(\)"
COMPARES = re.compile(rf"(?:assert|if)\b.*(?:[<>].*{READS}|{READS}.*[<>])|assert.*\b(?:took|elapsed)\b")
"""A line that compares times."""
DEADLINE = re.compile(r"\b(?:deadline|until|end|gone_by)\b")
"""Names in a line that only ends a wait."""
LOOSE = 4.0
"""Seconds: who allows so many only looks for hangs, and does so beside others."""
BOUND = re.compile(r"[<>]=?\s*(?:(\d+(?:\.\d+)?)|([A-Z][A-Z_]+))\b(?!\s*[*/.])")
"""The limit in a comparison: a number, or a constant's name."""


class Line(NamedTuple):
    """The cost of a function, over all its cases."""

    cpu: float
    wall: float
    starts: int
    words: list[str]


def function(nodeid: str) -> str:
    """The function of a case."""
    return nodeid.partition("[")[0]


class Record:
    """A plug-in of the process that collects, which hears every report."""

    def __init__(self) -> None:
        self.path = PATH
        read = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.lines: dict[str, Line] = {}
        for place, of in read.items():  # a file's functions; or one, as was written before
            found = {place: of} if "::" in place else {f"{place}::{name}": line for name, line in of.items()}
            self.lines.update({name: Line(*line) for name, line in found.items()})
        self._seen: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
        self._items: dict[str, pytest.Item] = {}
        self._deselected: set[str] = set()
        self._failed: set[str] = set()

    # --- what a run asks

    def units(self, items: list[pytest.Item]) -> tuple[list[list[int]], list[list[int]]]:
        """Indices of what runs beside others, the longest first, and of what runs alone afterwards."""
        files: dict[str, list[int]] = defaultdict(list)
        alone: dict[str, list[int]] = defaultdict(list)
        for index, item in enumerate(items):
            name = function(item.nodeid)
            (alone[name] if self.reads_clock(item) else files[name.partition("::")[0]]).append(index)
        walls: dict[str, float] = {}
        units: dict[str, list[int]] = {}
        for file, indices in files.items():
            names = dict.fromkeys(function(items[index].nodeid) for index in indices)
            own = {name: self.lines[name].wall if name in self.lines else GUESS for name in names}
            if sum(own.values()) <= LONG:
                units[file], walls[file] = indices, sum(own.values())
                continue
            for index in indices:
                name = function(items[index].nodeid)
                unit = file if _shares(items[index]) else name
                units.setdefault(unit, []).append(index)
                walls[unit] = walls.get(unit, 0.0) + own.pop(name, 0.0)
        return [units[name] for name in sorted(units, key=lambda name: -walls[name])], list(alone.values())

    def reads_clock(self, item: pytest.Item) -> bool:
        line = self.lines.get(function(item.nodeid))
        return (line is None or "clock" in line.words) and "clock" in words_of(item)

    def cpu(self, item: pytest.Item) -> float:
        """Seconds of all cases of its function; 0: there is no record."""
        line = self.lines.get(function(item.nodeid))
        return 0.0 if line is None else line.cpu

    def is_quick(self, item: pytest.Item) -> bool:
        """It starts nothing, imports no torch and takes less than a second; so may what has no record."""
        line = self.lines.get(function(item.nodeid))
        return line is None or (line.starts == 0 and line.wall < 1 and "torch" not in line.words)

    # --- what it hears

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._items = {function(item.nodeid): item for item in session.items}

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self._deselected.update(function(item.nodeid) for item in items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(function(report.nodeid))
        seen = self._seen[function(report.nodeid)]
        for i, each in enumerate(getattr(report, "cost", [])):
            seen[i] += each

    def write(self) -> None:
        """Keep what has moved.  What is not there any more goes: of a file that has run, and a file."""
        ran = {name.partition("::")[0] for name in self._seen}
        lines: dict[str, Line] = {}
        for name, line in self.lines.items():
            file = name.partition("::")[0]
            left = file not in ran and (self.path.parents[1] / file).exists()
            if left or name in self._seen or name in self._deselected:
                lines[name] = line
        for name, (cpu, wall, starts) in self._seen.items():
            new = Line(round(cpu, 2), round(wall, 2), int(starts), words_of(self._items[name]))
            if name not in self._failed and (name not in lines or moved(lines[name], new)):  # those may end early
                lines[name] = new
        if lines != self.lines:
            files: dict[str, dict[str, Line]] = defaultdict(dict)
            for name in sorted(lines):
                file, _, own = name.partition("::")
                files[file][own] = lines[name]
            rows = (f"{json.dumps(file)}: {json.dumps(of)}" for file, of in files.items())
            self.path.write_text("{\n" + ",\n".join(rows) + "\n}\n")


def _shares(item: pytest.Item) -> bool:
    """Does it use a fixture that tests of its module share?"""
    fixtures = getattr(item, "_fixtureinfo", None)
    found = fixtures.name2fixturedefs.values() if fixtures else ()
    return any(each[-1].scope in ("class", "module", "package") for each in found)


def moved(old: Line, new: Line) -> bool:
    """By more than a factor of 2, or from nothing to something."""
    for a, b in ((old.cpu, new.cpu), (old.wall, new.wall)):
        low, high = sorted((max(a, FLOOR), max(b, FLOOR)))
        if high > 2 * low:
            return True
    return (old.starts == 0) != (new.starts == 0) or old.words != new.words


def words_of(item: pytest.Item) -> list[str]:
    """Words that its source tells: it imports torch, it compares times."""
    told = getattr(item, "obj", None)
    if told is None or not hasattr(told, "__code__"):
        return []
    texts = list(sources(told))
    words = ["torch"] if imports_torch(Path(item.path)) else []
    compares = any(compares_times(line, told.__globals__) for text in texts for line in text.splitlines())
    return [*words, *(["clock"] if compares else [])]


def compares_times(line: str, names: dict[str, Any]) -> bool:
    """Does this line of a test, with these constants, ask whether something was quick?"""
    if not COMPARES.search(line) or DEADLINE.search(line):
        return False
    bounds = [float(number) if number else names.get(name) for number, name in BOUND.findall(line)]
    return not any(isinstance(bound, (int, float)) and bound >= LOOSE for bound in bounds)


def sources(told: Any) -> list[str]:
    """Its own source, and that of the functions and texts of its file that it names."""
    seen: dict[str, str] = {}
    todo = [told]
    while todo:
        each = todo.pop()
        each = inspect.unwrap(each)
        seen[each.__qualname__] = _source(each)
        for name in each.__code__.co_names:
            found = each.__globals__.get(name)
            if isinstance(found, str):
                seen.setdefault(name, found)
            elif inspect.isfunction(found) and found.__module__ == told.__module__ and found.__qualname__ not in seen:
                todo.append(found)
    return list(seen.values())


def _source(function: Any) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return ""


@functools.cache
def imports_torch(path: Path) -> bool:
    """Does a test file import torch, or what imports it?"""
    return bool(re.search(r"^\s*(?:import|from)\s[^#\n]*\b(?:torch|horovod)", path.read_text(), re.M))


def uses_torch(path: Path) -> bool:
    """Does any of its tests, or a program in it?"""
    return bool(re.search(r"\b(?:import|from|importorskip)\b[^#\n]*\b(?:torch|horovod)", path.read_text()))
