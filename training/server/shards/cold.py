"""A file of rows that were not used for long: each at its place, read and written with pread and pwrite.

The file has no name and ends with the process: what a server holds is on its copy and in snapshots.  It is not mapped:
a file system that is full, or a file that was cut, is an error here, and would be a signal that ends the process there.
An embedded store has keys, transactions and recovery of its own; here places are known, and nothing is recovered.
"""

from __future__ import annotations

import errno
import os
import tempfile

import numpy as np

from hocket.training.server.optimizers import Array


def default() -> str:
    """The folder if none is given: /tmp is memory on many systems."""
    return os.environ.get("TMPDIR") or "/var/tmp"


class Cold:
    """Rows of `nbytes` bytes, in a file without a name in this folder."""

    def __init__(self, folder: str, nbytes: int) -> None:
        self.folder, self._nbytes = folder, nbytes
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self.rows_read = self.rows_written = 0

    def write(self, places: Array, rows: Array) -> None:
        """`rows`: uint8, one for each place, in ascending order.  Raises OSError: the file system is full."""
        data, size, file = np.ascontiguousarray(rows).reshape(-1).data, self._nbytes, self._file.fileno()
        for first, end, place in _runs(places):
            part, at = data[first * size : end * size], place * size
            while len(part):  # a write may be short where the room ends; the next one says so
                done = os.pwrite(file, part, at)
                part, at = part[done:], at + done
        self.rows_written += len(places)

    def read(self, places: Array) -> Array:
        """Rows of uint8.  Raises OSError: the file does not have one, so somebody has cut it."""
        rows = np.empty((len(places), self._nbytes), np.uint8)
        data, size, file = rows.reshape(-1).data, self._nbytes, self._file.fileno()
        for first, end, place in _runs(places):
            part, at = data[first * size : end * size], place * size
            while len(part):
                done = os.preadv(file, [part], at)
                if not done:
                    raise OSError(errno.EIO, f"the file of cold rows ends before row {at // size}: it was cut")
                part, at = part[done:], at + done
        self.rows_read += len(places)
        return rows


def _runs(places: Array) -> list[tuple[int, int, int]]:
    """Where neighbours begin and end, and the first one's place.

    >>> _runs(np.array([3, 4, 5, 9]))
    [(0, 3, 3), (3, 4, 9)]
    """
    begins = np.flatnonzero(np.diff(places, prepend=-2) != 1)
    ends = [*begins[1:].tolist(), len(places)]
    return list(zip(begins.tolist(), ends, places[begins].tolist(), strict=True))
