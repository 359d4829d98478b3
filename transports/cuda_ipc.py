"""Which ranks' GPU memory this process can map: tested, as every road is, by reading what the peer has put there.

The protocol of the channels is cuda_ipc.h; they stand on host channels, so only ranks of one host are asked for.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from typing import Any

import numpy

from hocket.errors import TransportError
from hocket.transports import cuda
from hocket.transports.shm import boot_id

TOKEN = 32
"""Bytes."""
LAST_WORD = 1.0
"""Seconds that the end of a lane waits for its peers to let go."""


class Proof:
    """A few bytes of this GPU that the peers read, to prove that they can."""

    def __init__(self, device: cuda.Device) -> None:
        self.device = device
        self.memory = cuda.Shared(device, TOKEN)
        self.token = numpy.frombuffer(secrets.token_bytes(TOKEN), numpy.uint8)
        self._copy(self.memory.address, self.token.ctypes.data)

    def offer(self) -> dict[str, Any]:
        return {
            "boot": boot_id(), "pid": os.getpid(), "uuid": self.device.uuid, "gpu": repr(self.device),
            "handle": self.memory.handle, "token": self.token.tobytes().hex(),
        }  # fmt: skip

    def reach(self, rank: int, offers: Sequence[dict[str, Any]]) -> list[str | None]:
        """Why the memory of each rank's GPU cannot be mapped here; None: it can."""
        return [None if r == rank else self._refusal(offer) for r, offer in enumerate(offers)]

    def _refusal(self, offer: dict[str, Any]) -> str | None:
        if "refused" in offer:
            return str(offer["refused"])
        if offer["boot"] != boot_id():
            return "its GPU is in another host"
        if offer["pid"] == os.getpid():
            return "it is a thread of the same process, whose memory CUDA does not share with itself"
        try:
            mapped = cuda.Mapped(self.device, offer["handle"])
            try:
                found = numpy.zeros(TOKEN, numpy.uint8)
                self._copy(found.ctypes.data, mapped.address)
            finally:
                mapped.close()
        except TransportError as why:
            return f"from {self.device}, {offer['gpu']}: {why}"
        return None if found.tobytes().hex() == offer["token"] else "another memory was mapped than its own"

    def _copy(self, to: int, source: int) -> None:
        self.device.copy(to, source, TOKEN, 0)
        self.device.synchronize(0)

    def close(self) -> None:
        self.memory.close()
