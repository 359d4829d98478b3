"""Where tuning is kept: one file for each kind of machine, under $XDG_CACHE_HOME/hocket (~/.cache/hocket)."""

from __future__ import annotations

import logging
import os
import platform
import tempfile
import zlib

from hocket.collectives.base.config import Config
from hocket.collectives.choice.tuning import Tuning
from hocket.errors import ArgumentError
from hocket.system.cores import processor, usable_cores

log = logging.getLogger("hocket")
MOST = 8 << 20
"""Bytes of a file: rank 0 sends it to every rank when they meet."""


def place() -> str:
    """The file of this kind of machine: its processor, how many cores this process may use, and the format's version.

    Home directories are shared by machines that are not alike.
    """
    kind = f"{processor()}|{usable_cores()}|{platform.machine()}"
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(home, "hocket", f"tuning-{zlib.crc32(kind.encode()):08x}.json")


def given(config: Config) -> str:
    """The text of the tuning that `config` asks for, "" for none.

    A file named by HOCKET_TUNING that cannot be used is an ArgumentError; one in the usual place is logged and ignored.
    """
    if config.tuning in ("off", "measure"):
        return ""
    path = place() if config.tuning == "auto" else config.tuning
    try:
        text = _read(path)
        Tuning.read(text)
        return text
    except (OSError, UnicodeDecodeError, ArgumentError) as why:
        if config.tuning != "auto":
            raise ArgumentError(f"HOCKET_TUNING={path}: {why}") from None
        if not isinstance(why, FileNotFoundError):
            log.warning("%s is not used: %s", path, why)
        return ""


def load(path: str) -> Tuning:
    """The tuning in a file; an empty one if there is no file.  ArgumentError if there is something else."""
    try:
        return Tuning.read(_read(path))
    except FileNotFoundError:
        return Tuning()
    except (OSError, UnicodeDecodeError) as why:
        raise ArgumentError(f"{path} cannot be read: {why}") from None


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        text = file.read(MOST + 1)
    if len(text) > MOST:
        raise ArgumentError(f"it has more than {MOST >> 20} MiB")
    return text


def store(path: str, tuning: Tuning) -> None:
    """Write the file, all or nothing: jobs that start meanwhile read the old one or the new one."""
    directory = os.path.dirname(os.path.abspath(path))
    try:
        os.makedirs(directory, exist_ok=True)
        number, name = tempfile.mkstemp(dir=directory, prefix=".tuning-")
        try:
            with open(number, "w", encoding="utf-8") as file:
                file.write(tuning.text() + "\n")
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as why:
        raise ArgumentError(f"{path} cannot be written: {why}") from None
