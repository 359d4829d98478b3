"""`hocket run --trace PATH`: ranks record into a folder beside it, from which the trace is made when the job has ended.

So a rank that is killed loses nothing.  Imports nothing of the ranks' side: the trace is made by a process of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from hocket.errors import ArgumentError

VARIABLE = "HOCKET_TRACE"
"""By which ranks learn of the folder."""


def prepare(path: str) -> str:
    """The folder for the ranks' recordings, new and this user's alone."""
    parts = f"{path}.parts"
    try:
        os.mkdir(parts, 0o700)
    except FileExistsError:
        raise ArgumentError(
            f"{parts} exists already, from a job that was cut off: run `hocket trace merge {parts}`, or remove it"
        ) from None
    except OSError as why:
        raise ArgumentError(f"{parts} cannot be made: {why.strerror}") from why
    os.environ[VARIABLE] = parts
    return parts


def finish(parts: str, path: str) -> None:
    """Make the trace of what is there; the folder goes if that ends well."""
    command = [sys.executable, "-m", "hocket", "trace", "merge", parts, "--each", "-o", path]
    made = subprocess.run(command, stdout=sys.stderr)
    if made.returncode == 0:
        shutil.rmtree(parts, ignore_errors=True)
    else:
        print(f"hocket run: no trace was made; the ranks' recordings are in {parts}", file=sys.stderr)
