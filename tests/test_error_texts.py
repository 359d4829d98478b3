"""Texts that users read when something fails: no words that have to be read twice, and a page that quotes it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from support.statements import statements

ROOT = Path(__file__).parents[1]
FOLDERS = (
    "algorithms", "bench", "collectives", "compressors", "conformance", "control", "frameworks", "kernels", "lab",
    "observe", "src/hocket", "system", "tools", "training", "transports",
)  # fmt: skip
TWICE = {
    r"\bis none\b|\bnone of\b|\bfor none\b": "None is a value of Python: say \"is unknown\", \"is not one of\"",
    r"\b(of|to|in) (which|whom)\b|\bso many\b": "say it in two sentences, or with the noun",
    r"(?<!there )\bis no [a-z]": 'say "is not a"',
    r"\bwanted (is|are)\b|\bwants\b": 'say "expected", "must be", "needs"',
    r"\b(owed|beliefs?|news)\b": "a metaphor of the code's",
}
IN_CYTHON = re.compile(r"Error\(\s*((?:f?\"(?:[^\"\\]|\\.)*\"\s*)+)")


def texts(path: Path) -> Iterator[str]:
    """Texts of the exceptions that a file raises, with holes where values come."""
    source = path.read_text()
    if path.suffix == ".pyx":
        yield from (found.group(1) for found in IN_CYTHON.finditer(source))
        return
    for node in statements(ast.parse(source)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            parts = (each.value for each in ast.walk(node.exc) if isinstance(each, ast.Constant))
            yield " … ".join(part for part in parts if isinstance(part, str))


def test_messages_are_read_once() -> None:
    files = [path for top in FOLDERS for end in ("*.py", "*.pyx") for path in sorted((ROOT / top).rglob(end))]
    said = [(path, text) for path in files for text in texts(path)]
    assert len(said) > 800
    odd = [
        f"{path.relative_to(ROOT)}: {text[:100]!r}: {mend}"
        for path, text in said for pattern, mend in TWICE.items() if re.search(pattern, text)
    ]  # fmt: skip
    assert not odd, "\n".join(odd)


def test_the_page_on_errors_quotes_what_is_raised() -> None:
    page = (ROOT / "docs" / "errors.md").read_text().partition("## What you read")[2].partition("\n## ")[0]
    quoted = re.findall(r"^\| `([^`]+)` \|", page, re.M)
    files = [path for top in FOLDERS for end in ("*.py", "*.pyx") for path in sorted((ROOT / top).rglob(end))]
    code = re.sub(r'"\n +f?"', "", "\n".join(path.read_text() for path in files))  # texts of several lines
    assert len(quoted) > 10
    assert [each for each in quoted if each not in code] == []
