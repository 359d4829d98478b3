"""Declarations of other packages for hocket: their entry points, and no more work than that takes."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

ALL = b"[hocket."
"""The groups of entry points that are hocket's begin so."""


def declared(group: str) -> tuple[Any, ...]:
    """The entry points of a group, "hocket.transports" or "hocket.algorithms", of the packages that are installed."""
    return _declared(group, tuple(sys.path))


@functools.cache
def _declared(group: str, path: tuple[str, ...]) -> tuple[Any, ...]:
    """Once for each sys.path (`path`)."""
    if not any(map(_may_declare, path)):
        return ()
    from importlib import metadata  # it takes as long as the rest of `init`

    return tuple(metadata.entry_points(group=group))


@functools.cache
def _may_declare(folder: str) -> bool:
    """May a package in this folder of sys.path declare something?  1 ms for 90 packages, where metadata takes 30."""
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return os.path.isfile(folder)  # a zip, which metadata can read
    return any(name.endswith(".egg") or (name.endswith("-info") and _declares(folder, name)) for name in names)


def _declares(folder: str, package: str) -> bool:
    try:
        with open(os.path.join(folder, package, "entry_points.txt"), "rb") as file:
            return ALL in file.read()
    except OSError:
        return False  # it declares nothing
