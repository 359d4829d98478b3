"""Which programs may be forked from a warm process, and which are started as they are."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

HARMLESS = set("BbdOqsuv")
"""Python's options of one letter that change nothing about how it finds modules."""
WITH_VALUE = ("-W", "-X")
THREADS = b"_NUM_THREADS"
"""A program that sets such a variable sets it before it imports NumPy: OMP_NUM_THREADS, OPENBLAS_NUM_THREADS, ..."""


def folder(command: Sequence[str]) -> str | None:
    """The folder that the program's own modules are imported from.  None: start it as it is.

    It may be forked if it runs by this very Python, with options that leave the ways to modules alone.
    """
    if not command or not _is_this_python(command[0]):
        return None
    words = iter(command[1:])
    for word in words:
        if word in ("-c", "-m"):
            text = next(words, "")
            return None if not text or THREADS in text.encode() else os.getcwd()
        if word in WITH_VALUE:
            next(words, "")
        elif not word.startswith(WITH_VALUE):
            if not word.startswith("-"):
                return _of_script(word)
            if len(word) == 1 or not set(word[1:]) <= HARMLESS:
                return None
    return None


def _is_this_python(word: str) -> bool:
    """Links into one Python may stand for different environments: only those beside it are the same."""
    path = shutil.which(word)
    if path is None or os.path.dirname(os.path.abspath(path)) != os.path.dirname(sys.executable):
        return False
    return os.path.samefile(path, sys.executable)


def _of_script(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            text = file.read()
    except OSError:
        return None
    return None if THREADS in text else os.path.dirname(os.path.realpath(path))
