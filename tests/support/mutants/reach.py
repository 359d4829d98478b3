"""Which test files reach which lines: `python -m support.mutants.reach` runs the suite once under coverage.

`build/reach/` gets a file of arcs for each test file.  `--compare OLD NEW` tells what one such folder reached and the
other does not.  With `--tree` another checkout, which has its own `.venv`, is measured.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import marshal
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from support.mutants.tracing import FILE, FOLDER, ROOT, Arcs

HERE = Path(__file__).parents[3]
START = (
    'import os, sys; path = os.environ.get("TESTS_TRACER"); '
    'path and (sys.path.append(path), __import__("tracing"), sys.path.remove(path))\n'
)
"""A .pth file's line: what Python runs at its start, with whatever variables a test leaves it."""
SUITE = ["-m", "pytest", "-p", "no:cacheprovider", "-p", "tracing", "--timeout", "600", "--workers"]


def measure(folder: Path, tree: Path = HERE, words: list[str] | None = None) -> None:
    """Run a tree's suite by its own Python; what fails, as tracing makes it slow, has reached something as well."""
    whole, folder = folder, folder.with_suffix(".half")
    for each in (whole, folder):
        shutil.rmtree(each, ignore_errors=True)
    tracer = folder / "tracer"
    tracer.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("tracing.py"), tracer)
    env = {**os.environ, FOLDER: str(folder), FILE: "", ROOT: str(tree), "TESTS_TRACER": str(tracer)}
    for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):
        env.pop(name, None)
    python = tree / ".venv/bin/python"
    start = tree / os.path.relpath(sysconfig.get_path("purelib"), HERE) / "hocket_reach.pth"
    start.write_text(START)
    try:
        subprocess.run([python, *(words or [*SUITE, "2"])], cwd=tree, env=env, check=False)
    finally:
        start.unlink()
    folder.rename(whole)


class Reach:
    """A folder of arcs: of each source file, which of its lines which test files reach."""

    def __init__(self, folder: Path) -> None:
        self.arcs: dict[str, set[tuple[int, int]]] = defaultdict(set)
        """Reach of all tests together."""
        self._lines: dict[str, dict[str, set[int]]] = defaultdict(dict)
        for path in sorted(folder.glob("*.arcs")):
            found: Arcs = marshal.loads(path.read_bytes())
            for source, pairs in found.items():
                self.arcs[source] |= pairs
                test = path.name.removesuffix(".arcs").replace("+", "/")
                self._lines[source][test] = {line for pair in pairs for line in pair if line > 0}

    def lines(self, source: str) -> dict[str, set[int]]:
        """By test file; that of "" was reached while tests were collected."""
        return self._lines.get(source, {})

    def all_lines(self, source: str) -> set[int]:
        return set().union(*self.lines(source).values())

    def tests(self, source: str, line: int, in_function: bool) -> set[str]:
        """The files that reach a line, or any of its module where it runs once in a process."""
        found = {test for test, lines in self.lines(source).items() if line in lines or not in_function}
        return found - {""}


def missing(old: Reach, new: Reach, tree: Path = HERE) -> Iterator[str]:
    """Code that `old` reached and `new` does not, a file a line: lines, then branches between reached lines."""
    for source in sorted(old.arcs):
        if not (tree / source).exists():
            yield f"{source}: is gone"
            continue
        lines = old.all_lines(source) - new.all_lines(source)
        branches = {pair for pair in old.arcs[source] - new.arcs[source] if min(pair) > 0 and not lines & {*pair}}
        told = [ranges(lines)] if lines else []
        told += [" ".join(f"{a}->{b}" for a, b in sorted(_between_statements(tree / source, branches)))]
        if any(told):
            yield f"{source}: {', '.join(filter(None, told))}"


def _between_statements(path: Path, arcs: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """Arcs by the first lines of statements."""
    first: dict[int, int] = {}
    for each in ast.walk(ast.parse(path.read_text())) if arcs else ():
        if isinstance(each, ast.stmt) and not hasattr(each, "body"):
            first.update(dict.fromkeys(range(each.lineno, (each.end_lineno or 0) + 1), each.lineno))
    return {(a, b) for a, b in ((first.get(a, a), first.get(b, b)) for a, b in arcs) if a != b}


def ranges(numbers: Iterable[int]) -> str:
    """`1-3 7`."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return " ".join(f"{a}-{b}" if a != b else str(a) for a, b in spans)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("OLD", "NEW"))
    parser.add_argument("--folder", type=Path, default=HERE / "build/reach")
    parser.add_argument("--tree", type=Path, default=HERE)
    parser.add_argument("--words", help="what its Python runs, in place of the suite: -m pytest -p tracing ...")
    options = parser.parse_args()
    if options.compare:
        with contextlib.suppress(BrokenPipeError):
            print(*missing(*(Reach(each) for each in options.compare)), sep="\n")
        return
    began = time.monotonic()
    measure(options.folder.resolve(), options.tree.resolve(), options.words and options.words.split())
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
