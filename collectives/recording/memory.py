"""Where a recorder lies: a file in memory, without a name, which other processes of this user find in /proc.

A rank makes its own.  `hocket run` makes them for its ranks and keeps them, so that a rank that was killed can be read.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import MutableMapping

HANDED = "HOCKET_RECORDER_FD"
"""The variable by which `hocket run` tells a rank the descriptor of its recorder."""
NAME = "hocket-recorder"
LINK = f"/memfd:{NAME} (deleted)"
"""The words of /proc/PID/fd about such a file."""
TRACE_END = ".ring"
"""The end of the names of a trace's files."""
RINGS, ROOM, TRACE_ROOM = 64, 1024, 1 << 20
"""Rings of a recorder, and records of one; of one in a trace."""
RINGS_AT = 1 << 20
SIZE = RINGS_AT + RINGS * ROOM * 32
"""Bytes.  Those that nobody writes take no memory."""
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
"""Nobody can cut the file short, which would kill who writes there."""


def make() -> int:
    """A new one's descriptor.  Raises OSError where the system refuses."""
    fd = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, SIZE)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def make_file(folder: str) -> int:
    """The file of a process's part of a trace, in a folder that is made if need be.  OSError: there is none."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    name = f"{os.uname().nodename}-{os.getpid()}-{time.monotonic_ns():x}{TRACE_END}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(os.path.join(folder, name), flags, 0o600)
    try:
        os.ftruncate(fd, RINGS_AT + RINGS * TRACE_ROOM * 32)
        os.posix_fallocate(fd, 0, RINGS_AT)
    except BaseException:
        os.close(fd)
        raise
    return fd


def handed(environ: MutableMapping[str, str]) -> int | None:
    """The descriptor that `hocket run` handed down, if it is one of these that nobody uses; else None.

    It and the variable are this process's alone from now on: what it starts has none.
    """
    text = environ.pop(HANDED, "")
    try:
        fd = int(text)
        fresh = os.readlink(f"/proc/self/fd/{fd}") == LINK and os.fstat(fd).st_size == SIZE
        sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS == SEALS
        if not (fresh and sealed and os.pread(fd, 8, 0) == bytes(8)):
            return None
        os.set_inheritable(fd, False)
    except (ValueError, OSError):  # not given, or not what it was
        return None
    return fd
