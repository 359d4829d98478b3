"""Docstrings begin with their subject: no reader looks below for what the sentence is about."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BAD = re.compile(r"(?:Of|As|What|Who|How|Those)\b")
MAYBE = re.compile(rf"[\"']\s*{BAD.pattern}")
IN_CYTHON = re.compile(r'"""(.*?)"""', re.S)
FOLDERS = ("src/hocket", "examples", "docs", "tests")
"""With all that src/hocket links to."""


def files() -> Iterator[Path]:
    for folder in FOLDERS:
        for place, _, names in os.walk(ROOT / folder, followlinks=True):
            yield from (Path(place, name) for name in names if name.endswith((".py", ".pyi", ".pyx", ".pxd")))


def docstrings(path: Path) -> Iterator[str]:
    """Texts that stand alone: of modules, classes, functions, and below what they are about."""
    source = path.read_text()
    if path.suffix in (".pyx", ".pxd"):
        yield from IN_CYTHON.findall(source)
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def test_docstrings_begin_with_their_subject() -> None:
    read = [*files()]
    assert len(read) > 1200
    maybe = [path for path in read if MAYBE.search(path.read_text())]  # to parse all takes seconds
    texts = [(path, text.strip()) for path in maybe for text in docstrings(path)]
    found = [f"{path.relative_to(ROOT)}: {text[:60]}" for path, text in texts if BAD.match(text)]
    assert not found, "\n".join([f"{len(found)} docstrings begin with another word than their subject:", *found])


@pytest.mark.parametrize("suffix", [".py", ".pyx"])
def test_one_that_does_not_is_noticed(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"any{suffix}"
    path.write_text('"""Good."""\nx = 1\n"""Of x."""\n')
    assert [bool(BAD.match(text)) for text in docstrings(path)] == [False, True]
