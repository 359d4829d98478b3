"""A copy of the C headers with one of them broken: what a test of a check must notice."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("system", "transports")


def copied(place: Path) -> Path:
    """All headers, in folders of the same names under `place`, which it returns: a compiler's include path."""
    for folder in FOLDERS:
        for header in (ROOT / folder).rglob("*.h"):
            copy = place / header.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(header, copy)
    return place


def stands(old: str, *names: str) -> bool:
    """Is this text in just one of these headers?  Each suite asks; the tests that break it run seldom."""
    return sum(old in (ROOT / name).read_text() for name in names) == 1


def broken(place: Path, old: str, new: str, *names: str) -> Path:
    """A copy in which the text `old`, that stands in one of the headers `names`, is `new`."""
    assert stands(old, *names), f"{names}: this mutant no longer applies: {old!r}"
    copied(place)
    for header in (place / name for name in names):
        header.write_text(header.read_text().replace(old, new))
    return place
