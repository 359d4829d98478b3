"""Which ranks' GPU memory this process can map, and how their streams can wait for each other: both are tried.

The protocol of the channels is protocol.h; they stand on host channels, so only ranks of one host are asked for.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy

from hocket.errors import TransportError
from hocket.system.cuda import driver
from hocket.system.cuda.shared import Mapped, Shared
from hocket.system.machine import boot_id

TOKEN = 32
"""Bytes."""
WORD_WAIT = 1.0
"""Seconds that a stream may take to see a word which has been written."""


class Proof:
    """A few bytes of this GPU that the peers read, to prove that they can, and words that they write.

    `room`: more bytes, that the proof has no use for.

    In this order, each step by all ranks before the next: `offer`, `reach`; `wait`, `tell`, `heard`; `let_go`, `close`.
    """

    def __init__(self, device: driver.Device, rank: int, size: int, room: int = 0) -> None:
        self.device, self.rank, self.size = device, rank, size
        self._own = -(-(TOKEN + 4 * size) // 256) * 256
        self.memory = Shared(device, self._own + room)
        device.clear(self.memory.address, self._own + room)
        self.token = numpy.frombuffer(secrets.token_bytes(TOKEN), numpy.uint8)
        self._copy(self.memory.address, self.token.ctypes.data)
        self._mapped: dict[int, Mapped] = {}
        self._streams: list[int] = []
        self.stuck = False
        """Is there a stream whose wait cannot be ended?"""

    def offer(self) -> dict[str, Any]:
        me = {"boot": boot_id(), "pid": os.getpid(), "gpu": repr(self.device), "token": self.token.tobytes().hex(),
              "uuid": self.device.uuid, "processors": self.device.multiprocessors,
              "side_by_side": self.device.side_by_side()}
        try:
            return me | {"handle": self.memory.handle}
        except TransportError as why:
            return me | {"refused": str(why)}

    def reach(self, offers: Sequence[dict[str, Any]]) -> list[str | None]:
        """Why the memory of each rank's GPU cannot be mapped here; None: it can."""
        return [None if r == self.rank else self._refusal(r, offer) for r, offer in enumerate(offers)]

    def _refusal(self, rank: int, offer: dict[str, Any]) -> str | None:
        if offer["boot"] != boot_id():
            return "its GPU is in another host"
        if offer["pid"] == os.getpid():
            return "it is a thread of the same process, whose memory CUDA does not share with itself"
        if "refused" in offer:
            return str(offer["refused"])
        try:
            self._mapped[rank] = mapped = Mapped(self.device, offer["handle"])
            token = numpy.zeros(TOKEN, numpy.uint8)
            self._copy(token.ctypes.data, mapped.address)
        except TransportError as why:
            return f"from {self.device}, {offer['gpu']}: {why}"
        return None if token.tobytes().hex() == offer["token"] else "the memory that was mapped is not the peer's"

    def _copy(self, to: int, source: int) -> None:
        self.device.copy(to, source, TOKEN, 0)
        self.device.synchronize(0)

    def room(self, rank: int) -> int:
        """Where the further bytes of `rank` begin, as mapped here; zeros at first."""
        return (self.memory.address if rank == self.rank else self._mapped[rank].address) + self._own

    def wait(self, peers: Sequence[int]) -> str:
        """Let a stream wait for a word of each of these peers', and of our own; why it cannot, or ""."""
        try:
            self._streams = [self.device.stream(), self.device.stream(driver.URGENT)]
            for rank in (self.rank, *peers):
                self.device.wait_word(self._word(self.memory.address, rank), 1, self._streams[0])
            return "" if not self.device.is_done(self._streams[0]) else "streams do not wait for words"
        except TransportError as why:
            return str(why)

    def tell(self, peers: Sequence[int]) -> str:
        """Write theirs.  Ours too, as an abort would, from beside the stream that waits for it."""
        try:
            for rank in peers:
                self.device.write_word(self._word(self._mapped[rank].address, self.rank), 1, self._streams[1])
            self._release([self.rank])
            return ""
        except TransportError as why:
            return str(why)

    def heard(self) -> str:
        """Were they seen?  Processes take turns on a GPU, and one whose stream waits must not keep the others away."""
        why = f"words were not seen within {WORD_WAIT:g} s"
        try:
            if not self._streams or self._seen():
                return ""
            self._release(range(self.size))
            self.stuck = not self._seen()
        except TransportError as error:
            why, self.stuck = str(error), True
        return f"waits for words cannot be ended ({why})" if self.stuck else why

    def _seen(self) -> bool:
        end = time.monotonic() + WORD_WAIT
        while not (seen := self.device.is_done(self._streams[0])) and time.monotonic() < end:
            time.sleep(0.0001)
        return seen

    def _release(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self.device.write_word(self._word(self.memory.address, rank), 1, self._streams[1])

    @staticmethod
    def _word(memory: int, rank: int) -> int:
        return memory + TOKEN + 4 * rank

    def let_go(self) -> None:
        """Let go of the peers' memory; after it a step for all, before `close`."""
        for stream in self._streams:
            self.device.end_stream(stream)
        for mapped in self._mapped.values():
            if not self.stuck:  # it would wait for that stream, as freeing would
                mapped.close()

    def close(self) -> None:
        if not self.stuck:
            self.memory.close()

    def abandon(self) -> None:
        """A step has failed: end our waits, which nobody else may.  Our memory stays: a peer may have it mapped."""
        self.stuck = bool(self._streams)
        with contextlib.suppress(TransportError):
            self._release(range(self.size) if self._streams else ())
        with contextlib.suppress(TransportError):
            self.stuck = self.stuck and not self._seen()
            self.let_go()
