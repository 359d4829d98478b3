"""The base of `GpuQueue`: this rank's channels, streams, scratch memory and kernels; made by all members together.

Its channels stand on those of the host: the ranks agree on each call by these, and the bytes go from GPU to GPU where
one can map the other's memory (transports/cuda_ipc/protocol.h), else through pinned memory and the host channel
(transports/pinned/protocol.h).  If some member cannot do its part there is no such queue, for any of them, and arrays
go through host memory whole (arrays/staging.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hocket.algorithms.language.registry import Algorithm, get
from hocket.collectives.arrays.buffers import Buffer
from hocket.collectives.arrays.streams import current_stream
from hocket.collectives.calls.call import Call
from hocket.collectives.calls.ops import Resolved
from hocket.collectives.gpu.delegate import made
from hocket.collectives.gpu.meeting import KERNELS, LARGEST, ROOM, Meeting
from hocket.collectives.gpu.rooms import Rooms
from hocket.collectives.gpu.stream_ops import StreamOps, refuse_capture
from hocket.collectives.gpu.trial import Abilities, Share, first, tried
from hocket.errors import TransportError
from hocket.system.cuda import driver
from hocket.system.cuda.nccl import Nccl
from hocket.transports.cuda_ipc.channels import SEGMENT, CudaChannels
from hocket.transports.pinned.channels import SLOT, Pinned

if TYPE_CHECKING:
    from hocket.collectives.members.members import Members

LAST_WORD = 1.0
"""Seconds that channels wait at their end for their peers to let go."""
RELEASE_WAIT = 1.0
"""Seconds that the end of the process waits until streams no longer wait for peers."""
RESULTS_WAIT = 1.0
"""Seconds after a failure in which results of earlier calls may still arrive."""
RELEASES, RELEASE_EVERY = 100, 0.1
"""Streams' waits are ended this often then, and so many seconds apart: a live rank's issued work may undo it."""


class GpuContext:
    """A queue's part of this rank's GPU: channels to the peers, streams, scratch memory and kernels."""

    def __init__(self, ordinal: int, rank: int, groups: Sequence[tuple[int, ...]], trial: Abilities) -> None:
        self.device = driver.device(ordinal)
        near = next(group for group in groups if rank in group)
        self.segment = SLOT if any(map(any, trial.mapped)) else SEGMENT
        """Bytes of a pipelined chunk that are in flight together: the same on all members."""
        mapped = [not trial.mapped[group[0]][group[1]] for group in groups if len(group) > 1]
        self.transport = "cuda over memory" if not all(mapped) else "cuda" if trial.why_apart else "cuda kernels"
        """Inside hosts, for choosing algorithms: the same on all members."""
        self._near = {peer: place for place, peer in enumerate(near) if not trial.mapped[rank][peer]}
        self._opened: list[int] = []
        self._kept: list[Buffer] = []
        self._releasing: threading.Thread | None = None
        self._started, self._last = threading.Lock(), threading.Lock()
        """Each is taken once: by the caller that starts that thread; by the one that gives everything back."""
        self._closing, self._hurry, self._released = threading.Event(), threading.Event(), threading.Event()
        self.is_driven: Callable[[], bool] = lambda: False
        """Is a call of the queue under way in some thread?"""
        self.pinned = Pinned(self.device)
        self.ops = StreamOps(self.device)
        self.rooms = Rooms(self.device, rank)
        """Where messages to other GPUs of this host lie."""
        self.nccl: Nccl | None = None
        """NCCL's communicator of the members, for algorithm="nccl"; made at its first use."""
        self.meeting: Meeting | None = None
        """Where kernels of this queue meet those of the other ranks."""
        self._processors = 0 if trial.why_apart else trial.processors
        self._rank, self._order = rank, [near.index(r) for r in sorted(near)]
        self.channels: CudaChannels | None = None
        self.offer: Any = None
        """The offer that the peers need (JSON)."""
        try:
            if len(self._near) > 1:  # besides this rank there are others
                room = ROOM if self._processors else 0
                self.channels = CudaChannels(self.device, near.index(rank), len(near), not trial.why_events, room)
                self.offer = self.channels.offer()
        except BaseException:
            self._give_back(clean=True)
            raise

    def open(self, peer: int, offer: Any, out: Any, in_: Any) -> tuple[Any, Any]:
        """GPU channels over these host channels."""
        if self.channels is None or peer not in self._near:
            return self.pinned.open(out, in_)
        self._opened.append(self._near[peer])
        return self.channels.open(self._near[peer], offer, out, in_)

    def complete(self) -> None:
        """The channels to all peers of this host are open: let kernels meet, if they can."""
        if self._processors and self.channels is not None:
            rooms = [self.channels.room(place) for place in self._order]
            self.meeting = Meeting(self.device, self._rank, rooms, self._processors)
            self.ops.join(self.meeting)

    def carries(self, call: Call, algorithm: Algorithm, how: Resolved) -> bool:
        """Does one kernel of each rank (meeting.pyx) carry out such calls?  The same on all members."""
        if self.meeting is None or call.src is None or how.function is not None or call.encoded is not None:
            return False
        ours = (call.collective, algorithm.name) in KERNELS and algorithm is get(call.collective, algorithm.name)
        even = call.counts is None or len(set(call.counts)) == 1
        return ours and even and 0 < call.src.nbytes <= LARGEST

    def refuse_capture(self, array: Any) -> None:
        """Raise ArgumentError if the stream of a call on this array is being captured."""
        refuse_capture(self.device, current_stream(array, self.device.ordinal))

    def join_nccl(self, size: int, share: Share, usable: Callable[[], object], limit: float) -> None:
        """Make NCCL's communicator of the members, who all are on their way to this."""
        self.nccl = made(self.device, self._rank, size, share, usable, limit)

    def register(self, buffer: Buffer) -> str:
        """Let peers of this host read the allocation of `buffer` in place.  Why they cannot, or ""."""
        if self.channels is None:
            return "no other rank's GPU is mapped here"
        if buffer.device != self.device.ordinal:
            return f"it is on GPU {buffer.device}, and this communicator works on {self.device}"
        why = self.channels.register(buffer.address)
        if not why:
            self._kept.append(buffer)
        return why

    def abort(self) -> None:
        """The communicator has failed: let a new thread end the streams' waits for peers.  From any thread."""
        if self._started.acquire(blocking=False):
            with _lock:
                _ending.append(self)
            thread = threading.Thread(target=self._release_quietly, name="hocket-release", daemon=True)
            thread.start()
            self._releasing = thread

    def _release_quietly(self) -> None:
        try:
            self._release()
        except TransportError:  # the GPU is lost, and its streams wait for nothing
            pass
        finally:
            self._released.set()
            with _lock:
                _ending.remove(self)

    def _release(self) -> None:
        """End the waits, then give back what this rank alone has had; its window stays, as a peer may be reading it."""
        self._hurry.wait(RESULTS_WAIT)
        if self._closing.is_set():
            return
        if self.meeting is not None:
            self.meeting.abort()
        if self.nccl is not None:
            self.nccl.abort()
        if self.channels is not None:
            for _ in range(RELEASES):  # after that no peer uses what is given back below
                could = self.channels.release()
                self._released.set()
                if not could or self._closing.wait(RELEASE_EVERY):
                    return
        while self.is_driven():  # a user's function may still run
            if self._closing.wait(RELEASE_EVERY):
                return
        if self._last.acquire(blocking=False):
            self._give_back(clean=False)

    def leave(self) -> None:
        """End the streams' waits now; called for contexts whose `abort` has begun to."""
        if self.channels is not None or self.nccl is not None:
            self._hurry.set()
            self._released.wait(RELEASE_WAIT)

    def close(self) -> None:
        """Unmap the peers' memory, and free ours when they have unmapped it.

        Peers may be lost meanwhile: `abort` still ends the streams' waits.  If it came first, its thread gives back.
        """
        if self._releasing is not None or not self._last.acquire(blocking=False):
            return
        left = []
        self.rooms.unmap()
        if self.channels is not None:
            deadline, left = time.monotonic() + LAST_WORD, self._opened
            while (left := [peer for peer in left if not self.channels.end(peer)]) and time.monotonic() < deadline:
                time.sleep(0.001)
        self._closing.set()
        self._hurry.set()
        if self._releasing is not None:
            self._releasing.join()
        self._give_back(clean=not left)

    def _give_back(self, clean: bool) -> None:
        if self.nccl is not None and not clean:
            self.nccl.abort()
        if self.channels is not None or self.nccl is not None:
            self.device.settle()  # work that uses the peers' memory has ended
        if self.nccl is not None:
            self.nccl.close()
        self.ops.close()
        self.rooms.close(clean)
        self.pinned.close()
        if self.meeting is not None:
            self.meeting.close()
        if self.channels is not None:
            self.channels.close(clean)
        if not clean:
            _mapped.extend(self._kept)
        self._kept.clear()


_lock = threading.Lock()
_ending: list[GpuContext] = []
"""Contexts whose streams' waits are being ended."""
_mapped: list[Buffer] = []
"""Registered arrays that peers may still map, as they did not say goodbye: kept until the process ends."""


def leave() -> None:
    """The process ends, and with it our threads: end the streams' waits, or freeing an array might wait for a peer."""
    with _lock:
        left = list(_ending)
    for each in left:
        each.leave()


def build(members: Members, ordinal: int, share: Share) -> tuple[GpuContext | None, Abilities]:
    """This rank's part of a queue on that GPU, if the members can have one."""
    context, trial = None, tried(members, ordinal, share)
    if trial.why_staged:
        return None, trial
    why = ""
    try:
        context = GpuContext(ordinal, members.rank, members.groups, trial)
    except TransportError as error:
        why = str(error)
    try:
        why = first(share, why)
    except BaseException:
        if context is not None:
            context.close()
        raise
    if why and context is not None:
        context.close()
    return (None, trial._replace(why_staged=why)) if why else (context, trial)
