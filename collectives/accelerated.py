"""The queue of a communicator's calls on GPU arrays: made by all members together, at the first such call.

Its channels stand on those of the host: the ranks agree on each call by these, and the bytes go from GPU to GPU where
one can map the other's memory (transports/cuda_ipc.h), else through pinned memory and the host channel
(transports/staged.h).  If some member cannot do its part there is no such queue, for any of them, and arrays go
through host memory whole (staging.py).
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hocket.collectives.device import Accelerated
from hocket.errors import TransportError
from hocket.transports import cuda, staged
from hocket.transports.base import LOCAL
from hocket.transports.cuda_ipc import LAST_WORD, Proof

GRACE = 1.0
"""Seconds after a failure in which what is on its way may still come: results of calls before the one that failed."""
RELEASES, RELEASE_EVERY = 100, 0.1
"""How often waits are ended then, and how many seconds apart: a rank that lives may undo it by what it has issued."""


class Found(NamedTuple):
    """What was tried.  The same on all members."""

    why_staged: str
    """Why there can be no such queue; ""."""
    mapped: list[list[str]]
    """[a][b]: why the memories of a's GPU and b's cannot be mapped by each other, "" if they can."""
    why_events: str
    """Why streams cannot wait for words that other ranks' streams write, ""; see mark.h."""


class Accelerator:
    """What a queue has of this rank's GPU: lanes to the peers, and what computes."""

    def __init__(self, ordinal: int, rank: int, groups: Sequence[tuple[int, ...]], found: Found) -> None:
        self.device = cuda.device(ordinal)
        near = next(group for group in groups if rank in group)
        self.segment = staged.SLOT if any(map(any, found.mapped)) else cuda.SLOT
        """Bytes of a pipelined chunk that are in flight together: the same on all members."""
        mapped = [not found.mapped[group[0]][group[1]] for group in groups if len(group) > 1]
        self.road = "cuda" if all(mapped) else "cuda over memory"
        """Inside hosts, for choosing algorithms: the same on all members."""
        self._near = {peer: place for place, peer in enumerate(near) if not found.mapped[rank][peer]}
        self._opened: list[int] = []
        self._releasing: threading.Thread | None = None
        self._failed, self._last = threading.Lock(), threading.Lock()
        """Taken once: by who starts that thread; by who gives everything back."""
        self._closing, self._hurry, self._released = threading.Event(), threading.Event(), threading.Event()
        self.is_driven: Callable[[], bool] = lambda: False
        """Is a call of the queue under way in some thread?"""
        self.staging = staged.Staging(self.device)
        self.accelerated = Accelerated(self.device)
        self.lane: cuda.Lane | None = None
        self.offer: Any = None
        """What the peers need (JSON)."""
        try:
            if len(self._near) > 1:  # there is not only this rank itself
                self.lane = cuda.Lane(self.device, near.index(rank), len(near), not found.why_events)
                self.offer = self.lane.offer()
        except BaseException:
            self._give_back(clean=True)
            raise

    def open(self, peer: int, offer: Any, out: Any, in_: Any) -> tuple[Any, Any]:
        """GPU channels over these host channels."""
        if self.lane is None or peer not in self._near:
            return self.staging.open(out, in_)
        self._opened.append(self._near[peer])
        return self.lane.open(self._near[peer], offer, out, in_)

    def register(self, address: int) -> str:
        """Let peers of this host read that allocation in place; why they cannot, or ""."""
        return self.lane.register(address) if self.lane is not None else "no other rank's GPU is mapped here"

    def abort(self) -> None:
        """The communicator has failed: soon no stream waits for a peer any more.  From any thread; returns at once."""
        if self._failed.acquire(blocking=False):
            thread = threading.Thread(target=self._release_quietly, name="hocket-release", daemon=True)
            thread.start()
            self._releasing = thread
            _failed.add(self)

    def _release_quietly(self) -> None:
        with contextlib.suppress(TransportError):  # of a GPU that is lost, whose streams wait for nothing
            self._release()

    def _release(self) -> None:
        """End the waits, then give back what this rank alone has had; its window stays, as a peer may be reading it."""
        self._hurry.wait(GRACE)
        if self._closing.is_set():
            return
        if self.lane is not None:
            for _ in range(RELEASES):
                could = self.lane.release()
                self._released.set()
                if not could or self._closing.wait(RELEASE_EVERY):
                    return
        while self.is_driven():  # a function of the user's may still be at it
            if self._closing.wait(RELEASE_EVERY):
                return
        if self._last.acquire(blocking=False):
            self._give_back(clean=False)

    def leave(self) -> None:
        """End the waits now, if they are to be ended."""
        if self.lane is not None:
            self._hurry.set()
            self._released.wait(LAST_WORD)

    def close(self) -> None:
        """Let go of the peers' memory; of ours when they have.

        Meanwhile they may be lost: `abort` still ends the waits of streams.  If it did before, its thread gives back.
        """
        if self._releasing is not None or not self._last.acquire(blocking=False):
            return
        left = []
        if self.lane is not None:
            deadline, left = time.monotonic() + LAST_WORD, self._opened
            while (left := [peer for peer in left if not self.lane.end(peer)]) and time.monotonic() < deadline:
                time.sleep(0.001)
        self._closing.set()
        self._hurry.set()
        if self._releasing is not None:
            self._releasing.join()
        self._give_back(clean=not left)

    def _give_back(self, clean: bool) -> None:
        self.accelerated.close()
        self.staging.close()
        if self.lane is not None:
            self.lane.close(clean)


_failed: weakref.WeakSet[Accelerator] = weakref.WeakSet()


def leave() -> None:
    """The process ends, and with it our threads: whatever frees arrays after this must not wait for a peer."""
    for each in list(_failed):
        each.leave()


Share = Callable[[Any], list[Any]]
"""Gives a JSON value, gets every member's; one step of all of them."""


def build(comm: Any, ordinal: int, share: Share) -> tuple[Accelerator | None, Found]:
    """This rank's part of a queue on that GPU, if the members can have one."""
    made, found = None, _try(comm, ordinal, share)
    if found.why_staged:
        return None, found
    why = ""
    try:
        made = Accelerator(ordinal, comm.rank, comm.groups, found)
    except TransportError as error:
        why = str(error)
    try:
        why = _first(share, why)
    except BaseException:
        if made is not None:
            made.close()
        raise
    if why and made is not None:
        made.close()
    return (None, found._replace(why_staged=why)) if why else (made, found)


def _try(comm: Any, ordinal: int, share: Share) -> Found:
    proof, why = None, ""
    try:
        proof = Proof(cuda.device(ordinal), comm.rank, comm.size)
    except TransportError as error:
        why = str(error)
    try:
        return _found(comm, share, proof, why)
    except BaseException:
        if proof is not None:
            proof.abandon()
        raise


def _found(comm: Any, share: Share, proof: Proof | None, why: str) -> Found:
    why = _first(share, why)
    if why or proof is None:
        if proof is not None:
            proof.close()
        return Found(why, [], "")
    refused = proof.reach(share(proof.offer()))
    tables = share([None if r == comm.rank else why or _host(comm, r) for r, why in enumerate(refused)])
    both = [[tables[a][b] or tables[b][a] or "" for b in range(comm.size)] for a in range(comm.size)]
    peers = [r for r, why in enumerate(both[comm.rank]) if not why and r != comm.rank]
    why_events = _no_words(comm, share, proof, peers)
    proof.let_go()
    share(None)  # now nobody has it mapped
    proof.close()
    return Found("", both, why_events)


def _no_words(comm: Any, share: Share, proof: Proof, peers: list[int]) -> str:
    asked = "HOCKET_GPU_SYNC asks for it" if comm.world.config.gpu_sync == "events" else ""
    why = _first(share, asked or proof.wait(peers))
    if not why:
        why = _first(share, proof.tell(peers))
    unheard = _first(share, proof.heard())  # ends the waits of those who could, too
    return why or unheard


def _first(share: Share, why: str) -> str:
    """What the first rank says that refuses; ""."""
    return next((f"rank {rank}: {said}" for rank, said in enumerate(share(why)) if said), "")


def _host(comm: Any, rank: int) -> str | None:
    """The host channel below must be memory: a packet of some bytes is all that it carries."""
    road = None if rank == comm.rank else comm.world.road(comm.members[rank])
    return None if road is None or road in LOCAL else f"the ranks' processes talk over {road}"
