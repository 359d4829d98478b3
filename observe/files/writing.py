"""A trace as a file: Perfetto's own format, or Chrome's JSON; the name decides."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from typing import IO

from hocket.errors import ArgumentError
from hocket.observe.files import chrome, perfetto
from hocket.observe.files.names import check
from hocket.observe.files.packing import pack
from hocket.observe.timeline import Timeline


def write(path: str, timeline: Timeline) -> None:
    """Write it under another name, with mode 0600, and rename it when it is whole.

    .pftrace.gz: 16 bytes and 1 us a slice.  JSON takes ten times as long, and has the newest million slices only.
    Raises ArgumentError where it cannot be written; then nothing is left behind.
    """
    form = chrome.rows if ".json" in os.path.basename(check(path))[-9:] else perfetto.packets
    with replacing(path) as file:
        if path.endswith(".gz"):
            pack(file, form(timeline))
        else:
            file.writelines(form(timeline))


@contextlib.contextmanager
def replacing(path: str) -> Iterator[IO[bytes]]:
    """A file that has this name once the block ends well."""
    half = f"{path}.{secrets.token_hex(4)}.half"
    try:
        with open(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            yield file
        os.replace(half, path)
    except OSError as why:
        raise ArgumentError(f"{path!r} cannot be written: {why.strerror}") from why
    finally:
        with contextlib.suppress(OSError):
            os.unlink(half)
