"""Algorithms of others: packages declare them by entry points, and a command is given a file."""

from __future__ import annotations

import functools
import logging
import runpy

from hocket.errors import ArgumentError
from hocket.system.packages import declared

GROUP = "hocket.algorithms"
"""The name of a group of entry points.  Each names a module that registers its algorithms when it is imported."""
log = logging.getLogger("hocket")


@functools.cache
def load() -> None:
    """Register them, once in a process.  A package that fails to is told of and left out."""
    for entry in declared(GROUP):
        try:
            entry.load()
        except Exception as error:  # someone else's package: its failure is no reason to fail a job that may not use it
            log.warning("the algorithms of %s (entry point %r) cannot be loaded: %s", entry.value, entry.name, error)


def run(file: str) -> None:
    """Register the algorithms that a Python file declares.

    ArgumentError: it cannot be read, or raises.
    """
    try:
        runpy.run_path(file)
    except Exception as error:
        raise ArgumentError(f"{file} cannot be taken: {type(error).__name__}: {error}") from error
