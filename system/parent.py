"""A process's parent, and its end when that dies (prctl(2))."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterator

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def die_with(parent: int) -> Callable[[], None]:
    """A function that a child calls before its exec: when `parent` dies, however it dies, the kernel kills the child.
    """
    prctl = ctypes.CDLL(None).prctl

    def before_exec() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return before_exec


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """In the block, children of this process's children become its own when theirs ends."""
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0)
