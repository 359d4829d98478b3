"""Lists of plain values between two ranks, as JSON: a first piece of a fixed length, which says how much follows."""

from __future__ import annotations

import json
from typing import Any

import numpy

from hocket import Communicator

HEAD = 1024
"""Bytes of the first piece.  A step of 200 tensors that are known by number fits into it."""
LENGTH = 4


def send(comm: Communicator, values: list[Any], dests: list[int]) -> None:
    """Send it to each of `dests`."""
    data = json.dumps(values, separators=(",", ":")).encode()
    raw = len(data).to_bytes(LENGTH, "little") + data
    head = numpy.frombuffer(raw[:HEAD].ljust(HEAD, b"\0"), numpy.uint8)
    rest = numpy.frombuffer(raw[HEAD:], numpy.uint8) if len(raw) > HEAD else None
    for dest in dests:
        comm.send(head, dest)
        if rest is not None:
            comm.send(rest, dest)


class ListReceiver:
    """Receives them, one after the other."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self._head = numpy.zeros(HEAD, numpy.uint8)

    def next(self, source: int | None) -> tuple[int, list[Any]]:
        """Sleep until one comes from `source`, None: from any rank.  Whose it was, and the values."""
        head = self._head
        if source is None:
            work = self.comm.recv(head, None, async_op=True)
            work.wait()
            source = int(work.source)
        else:
            self.comm.recv(head, source)
        raw = head.tobytes()
        length = int.from_bytes(raw[:LENGTH], "little") + LENGTH
        if length > HEAD:
            rest = numpy.empty(length - HEAD, numpy.uint8)
            self.comm.recv(rest, source)
            raw += rest.tobytes()
        values: list[Any] = json.loads(raw[LENGTH:length])
        return source, values
