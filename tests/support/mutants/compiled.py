"""Mutants of Cython and C, by the words of a line in a function; and the build of what a file is compiled into."""

from __future__ import annotations

import functools
import random
import re
from pathlib import Path

from support.mutants.mutate import LARGE, Mutant
from support.mutants.reach import HERE

SWAPS = {
    "<": ["<=", ">="], "<=": ["<", ">"], ">": [">=", "<="], ">=": [">", "<"], "==": ["!="], "!=": ["=="], "+": ["-"],
    "-": ["+"], "+=": ["-="], "-=": ["+="], "&&": ["||"], "||": ["&&"], "and": ["or"], "or": ["and"], "is": ["is not"],
    "True": ["False"], "False": ["True"], "true": ["false"], "false": ["true"], "min": ["max"], "max": ["min"],
}  # fmt: skip
WORD = re.compile(
    r"(?<= )(?:[<>=!]=|[<>]|[+-]=?|&&|\|\||and|or|is(?! not))(?= )"
    r"|\b(?:[Tt]rue|[Ff]alse|min|max)\b|(?<![\w.])\d+(?![\w.])"
)
MASKED = {
    ".pyx": re.compile(r'""".*?"""|"(?:\\.|[^"\\\n])*"|#[^\n]*', re.S),
    ".h": re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|^#(?:[^\n]*\\\n)*[^\n]*', re.S | re.M),
}
"""Texts and comments; of C, what the preprocessor reads."""
NO_CODE = {
    ".pyx": re.compile(r"\s*(?:@|def |cpdef |cdef (?!.*=)|from |c?import |class |raise |assert |ctypedef |\w+: )|\S"),
    ".h": re.compile(r"\s*(?:static_assert|_Static_assert|enum|typedef)\b|\S"),
}
"""Lines that say nothing that runs, or stand outside of functions."""
FOLDERS = ("system", "transports", "kernels", "collectives", "frameworks", "bench")
"""Folders with anything that is compiled."""
EVERYWHERE = ("tests/jobs", "tests/collectives")
"""Tests that go through all of it."""
BUILD = """
import runpy, sys, Cython.Build
wanted, build = sys.argv[1:], Cython.Build.cythonize
def some(modules, **how):
    return build([each for each in modules if each.sources[0] in wanted], force=True, **how)
Cython.Build.cythonize = some
sys.argv[:] = ["setup.py", "--quiet", "build_ext", "--inplace", "--force"]
runpy.run_path("setup.py", run_name="__main__")
"""
"""Compile these sources, `src/hocket/...`, and nothing else."""
INCLUDE = re.compile(r'^\s*#\s*include "([^"]+)"', re.M)


def sources(name: str) -> list[str]:
    """The sources that a source or header is compiled into: of a header all whose C includes it, also by way of others.

    In the library's folders alone, so some headers are compiled into nothing (of the program that XLA loads).
    """
    if not name.endswith(".h"):
        return [f"src/hocket/{name.removeprefix('frameworks/')}"]
    known, found = {name}, _includes()
    while more := {each for each, those in found.items() if those & known} - known:
        known |= more
    return sorted(f"{each.rpartition('.')[0]}.pyx" for each in known if each.startswith("src/hocket/"))


@functools.cache
def _includes() -> dict[str, set[str]]:
    """Includes of each header, and of each source's C as the last build has made it."""
    headers = [path for folder in FOLDERS for path in (HERE / folder).rglob("*.h")]
    made = max((HERE / "build/cython").iterdir(), key=lambda folder: folder.stat().st_mtime)
    read = {path: path.relative_to(HERE) for path in headers}
    read |= {path: path.relative_to(made) for path in (made / "src").rglob("*.c*")}
    return {str(name): {_found(each, name) for each in INCLUDE.findall(at.read_text())} for at, name in read.items()}


def _found(included: str, by: Path) -> str:
    beside = by.parent / included
    return str(beside) if (HERE / beside).exists() else included


def tests(name: str) -> list[str]:
    """Test files that may reach it: of its folder's mirror and what is below, and of the whole library."""
    mirror = next(each for each in Path("tests", name).parents if (HERE / each).is_dir())
    found = {path for folder in (str(mirror), *EVERYWHERE) for path in (HERE / folder).rglob("test_*.py")}
    return sorted(str(path.relative_to(HERE)) for path in found)


def mutants(name: str, text: str, rng: random.Random) -> list[Mutant]:
    """One for each line in a function that has any; `rng` chooses it."""
    ending = name[name.rindex(".") :]
    masked = MASKED[ending].sub(lambda match: re.sub(r"[^\n]", "_", match[0]), text)
    made, begin = [], 0
    for number, line in enumerate(masked.splitlines(keepends=True), 1):
        if not NO_CODE[ending].match(line) and (found := list(WORD.finditer(line))):
            word = rng.choice(found)
            start = len(text[: begin + word.start()].encode())
            made.append(Mutant(number, number, True, start, start + len(word[0]), _other(word[0], rng)))
        begin += len(line)
    return made


def _other(word: str, rng: random.Random) -> str:
    if not word.isdigit():
        return rng.choice(SWAPS[word])
    number = int(word)
    return str(rng.choice([number + 1, abs(number - 1)] if number < LARGE else [number * 2, number // 2]))
