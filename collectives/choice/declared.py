"""Algorithms of other packages, which declare them by entry points."""

from __future__ import annotations

import functools
import logging

from hocket.system.packages import declared

GROUP = "hocket.algorithms"
"""Of entry points.  Each names a module that registers its algorithms when it is imported."""
log = logging.getLogger("hocket")


@functools.cache
def load() -> None:
    """Register them, once in a process.  A package that fails to is told of and left out."""
    for entry in declared(GROUP):
        try:
            entry.load()
        except Exception as error:  # someone else's package: its failure is no reason to fail a job that may not use it
            log.warning("the algorithms of %s (entry point %r) cannot be loaded: %s", entry.value, entry.name, error)
