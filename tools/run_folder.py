"""The directory of one `hocket run` or pool: its ranks' sockets and last words; and what killed launchers have left."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator

from hocket.system.machine import boot_id, new_folder

PREFIX = "hocket-run-"
LOCK = "lock"
"""A file in it that the launcher holds a lock on: the system lets go of it however the launcher ends."""
LOOKING = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def place() -> Iterator[str]:
    """The path of a directory that is gone after the block.

    If this process is killed, the next job of this host removes it; but not what a reboot leaves (`of_this_host`).
    """
    prefix = of_this_host()
    directory = new_folder(prefix)
    try:
        remove_left(os.path.dirname(directory), prefix)
        with open(os.path.join(directory, f"{LOCK}-new"), "w") as lock:
            with contextlib.suppress(OSError):  # a file system without locks: what is left there stays
                fcntl.flock(lock, fcntl.LOCK_EX)
                os.rename(lock.name, os.path.join(directory, LOCK))  # nobody finds it before it is held
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def of_this_host() -> str:
    """The beginning of the names, until a reboot: hosts that share a folder may not see each other's locks."""
    return f"{PREFIX}{hashlib.sha256(boot_id().encode()).hexdigest()[:6]}-"


def remove_left(base: str, prefix: str) -> None:
    """Remove this user's directories under `base` whose launchers, on this host, have ended."""
    with contextlib.suppress(OSError), os.scandir(base) as entries:
        for entry in entries:
            if re.fullmatch(rf"{prefix}\w{{8}}", entry.name, re.ASCII):
                _remove_if_left(entry.path)


def _remove_if_left(path: str) -> None:
    """Other users' are not even looked into.  In one's own, a lock that is no file was not made by hocket."""
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):  # it may be gone meanwhile
        folder = os.open(path, LOOKING | os.O_DIRECTORY)
        stack.callback(os.close, folder)
        if os.fstat(folder).st_uid != os.geteuid():
            return
        lock = os.open(LOCK, LOOKING | os.O_NONBLOCK, dir_fd=folder)
        stack.callback(os.close, lock)
        if stat.S_ISREG(os.fstat(lock).st_mode):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
