"""The directory of one `hocket run`: its ranks' sockets and last words; and those that killed launchers have left."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator

PREFIX = "hocket-run-"
LOCK = "lock"
"""A file in it that the launcher holds a lock on: the system lets go of it however the launcher ends."""
LONGEST = 80
"""Bytes of TMPDIR: a longer one would not fit into a socket's path."""


@contextlib.contextmanager
def place() -> Iterator[str]:
    """The path of a directory that is gone after the block, or, if this process is killed, when the next job starts."""
    base = tempfile.gettempdir()
    base = base if len(os.fsencode(base)) < LONGEST else "/tmp"
    remove_left(base)
    directory = tempfile.mkdtemp(prefix=PREFIX, dir=base)
    try:
        with open(os.path.join(directory, f"{LOCK}-new"), "w") as lock:
            with contextlib.suppress(OSError):  # a file system without locks: what is left there stays
                fcntl.flock(lock, fcntl.LOCK_EX)
                os.rename(lock.name, os.path.join(directory, LOCK))  # nobody finds it before it is held
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def remove_left(base: str) -> None:
    """Remove this user's directories under `base` whose launchers have ended."""
    for path in glob.glob(os.path.join(glob.escape(base), f"{PREFIX}*", LOCK)):
        with contextlib.suppress(OSError), open(path) as lock:  # another user's, or gone meanwhile
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(os.path.dirname(path), ignore_errors=True)
