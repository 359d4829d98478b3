"""Which machine this process is on, and where in it a folder for sockets can be made."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping

from hocket.errors import TransportError

USUAL = ("/tmp", "/var/tmp", "/dev/shm")
"""The last is memory, and can be written in most containers whose root is read-only."""
LONGEST = 75
"""Bytes of the path of such a folder: a socket's path, which lies in a folder below it, has at most 107."""


def boot_id() -> str:
    """The same on two processes only if one kernel runs both; the host's name where /proc/sys is not mounted."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return os.uname().nodename


def temporary(environ: Mapping[str, str]) -> list[str]:
    """Folders in which a folder of ours may be made, best first: TMPDIR, if it is short enough, and the usual ones."""
    named = [os.path.abspath(environ["TMPDIR"])] if environ.get("TMPDIR") else []
    return [base for base in dict.fromkeys([*named, *USUAL]) if len(os.fsencode(base)) <= LONGEST]


def own_folder(environ: Mapping[str, str]) -> str:
    """The same on two processes of one kernel only if they see the same folder for temporary files."""
    for base in temporary(environ):
        with contextlib.suppress(OSError):
            found = os.stat(base)
            return f"{found.st_dev}:{found.st_ino}"
    return ""


def new_folder(prefix: str) -> str:
    """A new folder that only this user can enter, for sockets: in the first of `temporary` where it can be made."""
    refused = []
    for base in temporary(os.environ):
        try:
            return tempfile.mkdtemp(prefix=prefix, dir=base)  # 0700
        except OSError as why:
            refused.append(f"{base}: {why.strerror}")
    raise TransportError(
        f"no folder can be made ({'; '.join(refused)}): set TMPDIR to a short path where this user can write"
    )
