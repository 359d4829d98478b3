"""Inside a host a rank copies what it wants out of its neighbours' arrays (process_vm_readv): one copy.

The rows of a box are a list of addresses, made once; a call takes a thousand of them.  Which ranks may read which is
tried once for a communicator: who is not allowed to, or has another process under that number, gets messages.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
from collections.abc import Sequence
from typing import Any

import numpy

from hocket.collectives.layouts.boxes import Box, count, inside
from hocket.collectives.layouts.comm import Comm
from hocket.errors import Error, PeerLostError, TransportError
from hocket.transports.shm.window import read_memory

ROW = 1 << 14
"""Bytes of a row, at least, where each is a piece of its own there: the kernel looks up its page, in a third of a
microsecond.  `python -m hocket.lab.large.rows` compares."""
SHORT, JOINED = 256, 8
"""The same, and how many of them, where rows follow each other there: then a page is looked up once for all of its
rows, and a row of 256 bytes takes 103 ns instead of 443, one of 1 KiB 221 instead of 525."""
AT_ONCE = 1024
"""Rows of one system call, at most: IOV_MAX."""
STEP = 4 << 20
"""Bytes after which who copies looks at its messages."""
TOKEN = 16
"""Bytes by which a rank knows that what it reads is its neighbour's memory."""
Rows = numpy.ndarray[Any, Any]
"""A line for each row: its address there, its address here, and its bytes."""
_readv = ctypes.CDLL(None, use_errno=True).process_vm_readv
_readv.restype = ctypes.c_ssize_t
_readv.argtypes = [
    ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong
]  # fmt: skip


class Reach:
    """Whose memory the ranks of a communicator may read, as all of them know it.  Made by all together."""

    def __init__(self, comm: Comm) -> None:
        self._token = numpy.frombuffer(secrets.token_bytes(TOKEN), numpy.uint8).copy()
        rows = comm.share([os.getpid(), self._token.ctypes.data, self._token.tobytes().hex()], "redistribute")
        self.pids = [int(pid) for pid, _, _ in rows]
        queue, me = comm.membership.main, comm.rank
        mine = [r for r in range(comm.size) if r != me and queue.is_local(r) and _readable(*rows[r])]
        self.reads: list[list[int]] = comm.share(mine, "redistribute")


def _readable(pid: int, address: int, token: str) -> bool:
    try:
        return len(token) == 2 * TOKEN and read_memory(pid, address, TOKEN).hex() == token
    except OSError:
        return False


def strides(box: Box, itemsize: int) -> list[int]:
    """Bytes from element to element, of each axis, in a C array that holds the box."""
    found = [itemsize]
    for own in reversed(box[1:]):
        found.insert(0, found[0] * len(own))
    return found[: len(box)]


def _steps(part: Box, box: Box, itemsize: int) -> list[int]:
    """Bytes from element to element of `part`, of each axis, in a C array that holds `box`."""
    return [s.step * n for s, n in zip(inside(part, box)[:-1], strides(box, itemsize), strict=True)]


def row_of(part: Box, there: Box, here: Box, itemsize: int) -> tuple[int, int]:
    """The bytes of `part` that follow each other in C arrays of both boxes, and the axes before these."""
    steps = list(zip(_steps(part, there, itemsize), _steps(part, here, itemsize), strict=True))
    row, axis = itemsize, len(part)
    while axis and (len(part[axis - 1]) == 1 or steps[axis - 1] == (row, row)):
        axis -= 1
        row *= len(part[axis])
    return row, axis


def worth(part: Box, there: Box, here: Box, itemsize: int) -> bool:
    """Is `part` copied out of a neighbour's memory faster than it is sent?"""
    row, _ = row_of(part, there, here, itemsize)
    if row >= min(ROW, count(part) * itemsize):
        return True
    run, _ = row_of(part, there, there, itemsize)
    return row >= SHORT and run >= JOINED * row


def rows(part: Box, there: tuple[int, Box], here: tuple[int, Box], itemsize: int) -> Rows:
    """The rows of `part` in two C arrays, each given by its address and its box."""
    row, axes = row_of(part, there[1], here[1], itemsize)
    found = []
    for address, box in (there, here):
        begin = sum(s.start * n for s, n in zip(inside(part, box)[:-1], strides(box, itemsize), strict=True))
        places = numpy.array([address + begin], numpy.int64)
        for length, step in zip(map(len, part[:axes]), _steps(part, box, itemsize), strict=False):
            places = (places[:, None] + numpy.arange(length, dtype=numpy.int64) * step).reshape(-1)
        found.append(places)
    return numpy.stack([*found, numpy.full(len(found[0]), row, numpy.int64)], axis=1)


class Pull:
    """The rows that a rank copies from one neighbour, in order."""

    def __init__(self, peer: int, pid: int, parts: Sequence[Rows]) -> None:
        self.peer, self.pid = peer, pid
        every = numpy.concatenate(parts)
        long = every[:, 2].max(initial=0)
        if long > STEP:
            every = numpy.concatenate([_cut(row) if row[2] > STEP else row[None] for row in every])
        ends = numpy.cumsum(every[:, 2])
        begins = [0]
        """The first row of each system call."""
        while (at := begins[-1]) < len(every):
            before = int(ends[at - 1]) if at else 0
            begins.append(max(at + 1, min(at + AT_ONCE, int(numpy.searchsorted(ends, before + STEP, "right")))))
        bytes_of = numpy.diff(ends[numpy.array(begins[1:], int) - 1], prepend=0)
        self._sides = [_joined(every[:, [side, 2]], begins) for side in (0, 1)]
        self.calls: list[tuple[int, int, int, int, int]] = []
        """For each system call the address of its list there, its length, the same here, and its bytes."""
        for number, nbytes in enumerate(bytes_of):
            lists = [(pieces.ctypes.data + 16 * int(at[number]), int(at[number + 1] - at[number]))
                     for pieces, at in self._sides]  # fmt: skip
            self.calls.append((*lists[0], *lists[1], int(nbytes)))

    def run(self, number: int) -> None:
        """Call `number`.  Raises PeerLostError if the neighbour is gone."""
        there, many, here, some, nbytes = self.calls[number]
        got = _readv(self.pid, here, some, there, many, 0)
        if got != nbytes:
            raise self._error(ctypes.get_errno() if got < 0 else errno.EFAULT)

    def _error(self, why: int) -> Error:
        if why == errno.ESRCH:
            return PeerLostError(f"redistribute: rank {self.peer} is gone: its process has ended", [self.peer])
        return TransportError(f"redistribute: the memory of rank {self.peer} cannot be read: {os.strerror(why)}")


def _joined(rows: Rows, begins: Sequence[int]) -> tuple[Rows, Rows]:
    """Rows that follow each other in memory as one piece, within a call; and where the pieces of each call begin.

    The kernel looks up each page of a piece there once, and each row's if it is a piece of its own.
    """
    first = numpy.ones(len(rows), bool)
    first[1:] = rows[1:, 0] != rows[:-1, 0] + rows[:-1, 1]
    first[numpy.array(begins[:-1], int)] = True
    places = numpy.flatnonzero(first)
    lengths = numpy.add.reduceat(rows[:, 1], places) if len(rows) else rows[:, 1]
    pieces = numpy.ascontiguousarray(numpy.stack([rows[places, 0], lengths], axis=1))
    return pieces, numpy.searchsorted(places, begins)


def _cut(row: Rows) -> Rows:
    starts = numpy.arange(0, row[2], STEP, dtype=numpy.int64)
    return numpy.stack([row[0] + starts, row[1] + starts, numpy.minimum(STEP, row[2] - starts)], axis=1)
