"""The queue of a communicator's calls on GPU arrays: made by all members together, at the first such call.

Its channels stand on those of the host: the ranks agree on each call through shared memory, and the bytes go from GPU
to GPU.  Where some member's GPU cannot be mapped by some other's process there is no such queue, for any of them, and
GPU arrays go through host memory (staging.py).
"""

from __future__ import annotations

import threading
import time
from typing import Any

from hocket.collectives.device import Accelerated
from hocket.errors import TransportError
from hocket.transports import cuda
from hocket.transports.base import LOCAL
from hocket.transports.cuda_ipc import LAST_WORD, Proof

GRACE = 1.0
"""Seconds after a failure in which what is on its way may still come: results of calls before the one that failed."""
RELEASES, RELEASE_EVERY = 100, 0.1
"""How often waits are ended then, and how many seconds apart: a rank that lives may undo it by what it has issued."""


class Accelerator:
    """What a queue has of this rank's GPU: lanes to the peers' memory, and what computes."""

    segment = cuda.SLOT

    def __init__(self, ordinal: int, rank: int, size: int, words: bool) -> None:
        self.device = cuda.device(ordinal)
        self.lane = cuda.Lane(self.device, rank, size, words)
        self._opened: list[int] = []
        self._releasing: threading.Thread | None = None
        self._closing = threading.Event()
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

    def abort(self) -> None:
        """The communicator has failed: soon no stream waits for a peer any more.  From any thread; returns at once."""
        if self._releasing is None and self.lane.words:
            self._releasing = threading.Thread(target=self._release, name="hocket-release", daemon=True)
            self._releasing.start()

    def _release(self) -> None:
        """End the waits, then give back what this rank alone has had; its window stays, as a peer may be reading it."""
        if self._closing.wait(GRACE):
            return
        for _ in range(RELEASES):
            if not self.lane.release() or self._closing.wait(RELEASE_EVERY):
                return
        self.accelerated.close()
        self.lane.close(clean=False)

    def close(self) -> None:
        """Let go of the peers' memory; of ours when they have."""
        self._closing.set()
        if self._releasing is not None:
            self._releasing.join()
        deadline = time.monotonic() + LAST_WORD
        left = self._opened
        while (left := [peer for peer in left if not self.lane.end(peer)]) and time.monotonic() < deadline:
            time.sleep(0.001)
        self.accelerated.close()
        self.lane.close(clean=not left)


def build(comm: Any, ordinal: int) -> tuple[Accelerator | None, str, str]:
    """This rank's part of a queue on that GPU; why the members have none, or ""; why their streams wait for events and
    not for words, or "".  The same on all of them."""
    made, (why, why_events) = None, refusals(comm, ordinal)
    if why:
        return None, why, ""
    try:
        made = Accelerator(ordinal, comm.rank, comm.size, words=not why_events)
    except TransportError as error:
        why = str(error)
    why = _first(comm, why)
    if why and made is not None:
        made.close()
    return (None, why, "") if why else (made, "", why_events)


def refusals(comm: Any, ordinal: int) -> tuple[str, str]:
    """Why the members cannot work from GPU to GPU, and why not by words; "": they can.  The same on all of them."""
    proof = None
    try:
        proof = Proof(cuda.device(ordinal), comm.rank, comm.size)
        mine = proof.offer()
    except TransportError as why:
        mine = {"refused": str(why)}
    offers = comm._share(mine)
    found = [mine["refused"]] * comm.size if proof is None else proof.reach(offers)
    found = [None if r == comm.rank else why or _host(comm, r) for r, why in enumerate(found)]
    tables = comm._share(found)
    refused = [f"rank {a} to rank {b}: {why}" for a, row in enumerate(tables) for b, why in enumerate(row) if why]
    why_events = "" if refused else _no_words(comm, proof)
    if proof is not None:
        proof.let_go()
    comm._share(None)  # now nobody has it mapped
    if proof is not None:
        proof.close()
    return refused[0] if refused else "", why_events


def _no_words(comm: Any, proof: Any) -> str:
    """Why streams cannot wait for words that other ranks' streams write, "": they can; see mark.h."""
    asked = "HOCKET_GPU_SYNC asks for it" if comm.world.config.gpu_sync == "events" else ""
    why = _first(comm, asked or proof.wait())
    if not why:
        why = _first(comm, proof.tell())
    unheard = _first(comm, proof.heard())  # ends the waits of those who could, too
    return why or unheard


def _first(comm: Any, why: str) -> str:
    """What the first rank says that refuses; ""."""
    return next((f"rank {rank}: {said}" for rank, said in enumerate(comm._share(why)) if said), "")


def _host(comm: Any, rank: int) -> str | None:
    """The host channel below must be memory: a packet of some bytes is all that it carries."""
    road = None if rank == comm.rank else comm.world.road(comm.members[rank])
    return None if road is None or road in LOCAL else f"the ranks' processes talk over {road}"
