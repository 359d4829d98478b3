"""The queue of a communicator's calls on GPU arrays: made by all members together, at the first such call.

Its channels stand on those of the host: the ranks agree on each call through shared memory, and the bytes go from GPU
to GPU.  Where some member's GPU cannot be mapped by some other's process there is no such queue, for any of them, and
GPU arrays go through host memory (staging.py).
"""

from __future__ import annotations

import time
from typing import Any

from hocket.collectives.device import Accelerated
from hocket.errors import TransportError
from hocket.transports import cuda
from hocket.transports.base import LOCAL
from hocket.transports.cuda_ipc import LAST_WORD, Proof


class Accelerator:
    """What a queue has of this rank's GPU: lanes to the peers' memory, and what computes."""

    segment = cuda.SLOT

    def __init__(self, ordinal: int, rank: int, size: int) -> None:
        self.device = cuda.device(ordinal)
        self.lane = cuda.Lane(self.device, rank, size)
        self._opened: list[int] = []
        try:
            self.offer = self.lane.offer()
            """What the peers need (JSON)."""
            self.accelerated = Accelerated(self.device)
        except BaseException:
            self.lane.close(True)
            raise

    def open(self, peer: int, offer: Any, out: Any, in_: Any) -> tuple[Any, Any]:
        """GPU channels over these host channels."""
        self._opened.append(peer)
        return self.lane.open(peer, offer, out, in_)

    def close(self) -> None:
        """Let go of the peers' memory; of ours when they have."""
        deadline = time.monotonic() + LAST_WORD
        left = self._opened
        while (left := [peer for peer in left if not self.lane.end(peer)]) and time.monotonic() < deadline:
            time.sleep(0.001)
        self.accelerated.close()
        self.lane.close(clean=not left)


def build(comm: Any, ordinal: int) -> tuple[Accelerator | None, str]:
    """This rank's part of a queue on that GPU; or None, and why the members have none.  The same on all of them."""
    made, why = None, refusal(comm, ordinal)
    if why:
        return None, why
    try:
        made = Accelerator(ordinal, comm.rank, comm.size)
    except TransportError as error:
        why = str(error)
    refused = [f"rank {r}: {said}" for r, said in enumerate(comm._share(why)) if said]
    if refused and made is not None:
        made.close()
    return (None, refused[0]) if refused else (made, "")


def refusal(comm: Any, ordinal: int) -> str:
    """Why the members cannot work from GPU to GPU; "": they can.  The same on all of them."""
    proof = None
    try:
        proof = Proof(cuda.device(ordinal))
        mine = proof.offer()
    except TransportError as why:
        mine = {"refused": str(why)}
    offers = comm._share(mine)
    if proof is None:
        found = [mine["refused"]] * comm.size
    else:
        found = [why or _host(comm, r) for r, why in enumerate(proof.reach(comm.rank, offers))]
        found[comm.rank] = None
    tables = comm._share(found)
    if proof is not None:
        proof.close()
    refused = [(a, b, why) for a, row in enumerate(tables) for b, why in enumerate(row) if why]
    return f"rank {refused[0][0]} to rank {refused[0][1]}: {refused[0][2]}" if refused else ""


def _host(comm: Any, rank: int) -> str | None:
    """The host channel below must be memory: a packet of some bytes is all that it carries."""
    road = None if rank == comm.rank else comm.world.road(comm.members[rank])
    return None if road is None or road in LOCAL else f"the ranks' processes talk over {road}"
