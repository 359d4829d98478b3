"""Names that a trace's file can have.  Imports nothing large: launchers look here."""

from __future__ import annotations

from hocket.errors import ArgumentError

SUFFIXES = (".pftrace", ".pftrace.gz", ".json", ".json.gz")


def check(path: str) -> str:
    """`path`, if a trace can have this name; else ArgumentError."""
    if not path.endswith(SUFFIXES):
        raise ArgumentError(f"the trace {path!r} must have a name that ends in {', '.join(SUFFIXES)}")
    return path
