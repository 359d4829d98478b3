"""Calls that one kernel of each rank carries out.  The kernels meet by flags, on a GPU of each rank or on one under MPS.

The hosts meet first, as before another library's collective (MEETING in delegates/libraries.py).  So all ranks
are in the same call, and a kernel waits for the others' streams, never for their hosts.  kernels/gpu/flags.cuh is how
kernels meet.
"""

from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdio cimport snprintf

import ctypes

from hocket.collectives.engine.run cimport hk_load32, hk_store32
from hocket.system.cuda.driver cimport CUfunction, CUstream, check

from hocket.collectives.gpu.compiled import function
from hocket.kernels.gpu import catalogue as kernels
from hocket.kernels.gpu import launch

LARGEST = 1 << 20
"""Bytes of a vector: for longer ones the copies cost more than the launches."""
FLAGS = launch.FLAG_BYTES + 256
"""Bytes that the flags and the status take: all that a trial needs."""
_WINDOW = -(-launch.blocks_bytes(LARGEST, launch.RANKS) // 256) * 256
_SETS = -(-(FLAGS + 2 * _WINDOW + launch.scratch_bytes(LARGEST, 2)) // 256) * 256
ROOM = _SETS + 3 * launch.FLAG_BYTES
"""Bytes of each rank that all ranks map: the flags, two windows, its reduced part, and the flags of calls in graphs.
Zeros at first."""
TRIAL = 1.0
"""Seconds that kernels which are launched together may take to meet."""
KERNELS = {
    ("allreduce", "one_shot"): "one_shot", ("allreduce", "direct"): "two_shot",
    ("reduce_scatter", "direct"): "reduce_scatter", ("allgather", "direct"): "allgather",
}
"""Which kernel does what (collective, algorithm) does: the same steps, in the same order of operands."""


cdef enum:
    TIMED_OUT = 1           # kernels/gpu/flags.cuh


cdef void next_call(Meet* m, uint64_t limit_ns) noexcept nogil:
    """Set the parameters of the next launch; `limit_ns` 0: no limit."""
    m.peers.epoch += 1
    m.peers.limit_ns = limit_ns if limit_ns else <uint64_t>1 << 62
    m.windows[0] = m.both[m.peers.epoch % 2]


cdef int gave_up(Meet* m, const char* which, char* words, size_t room) noexcept nogil:
    """Has a kernel given up?  Then why, for people, after `which`."""
    cdef uint32_t status = hk_load32(m.host + 1) if m.host != NULL else 0
    if status:
        snprintf(words, room, b"%sits kernel waited for that of rank %u, %s", which, status & 255,
                 b"which did not come in time" if status >> 16 == TIMED_OUT else b"until it was aborted")
    return status != 0


cdef class Meeting:
    """This rank's part in the meetings of a queue's kernels.

    `rooms`: the addresses of all ranks' ROOM bytes, as mapped here, this rank's included; FLAGS bytes are enough for
    `barrier`.  `multiprocessors`: what each rank has for them at least, so that the grids are the same.
    """

    def __init__(self, Device device, int rank, list rooms, int multiprocessors):
        self.device, self.multiprocessors = device, multiprocessors
        self.meet.host = <uint32_t*><uintptr_t>device.alloc_host(2 * sizeof(uint32_t))
        self.meet.host[0] = self.meet.host[1] = 0
        self.peers = launch.Peers(
            launch.pointers(rooms).at, rooms[rank] + launch.FLAG_BYTES, <uintptr_t>self.meet.host, 0, 0, rank, len(rooms)
        )
        even, odd, scratch = (FLAGS + i * _WINDOW for i in range(3))
        self.windows = launch.pointers(rooms)
        self.scratch = launch.pointers([room + scratch for room in rooms])
        for i, room in enumerate(rooms):
            self.meet.both[0].at[i], self.meet.both[1].at[i] = room + even, room + odd
        self.meet.sets, self.meet.bytes = _SETS, launch.FLAG_BYTES
        self.meet.peers = <hk_peers*><uintptr_t>ctypes.addressof(self.peers)
        self.meet.windows = <hk_pointers*><uintptr_t>ctypes.addressof(self.windows)

    def prepare(self) -> None:
        """Compile the kernel of `barrier`."""
        function(self.device, kernels.BARRIER)

    def barrier(self, uintptr_t stream) -> None:
        """Let one block of each rank meet the others', within TRIAL seconds; `given_up` says whether they did."""
        values, kept = launch.arguments(kernels.BARRIER, self.peers)
        cdef uintptr_t parameters = ctypes.addressof(values), handle = function(self.device, kernels.BARRIER)
        next_call(&self.meet, <uint64_t>(TRIAL * 1e9))
        with self.device:
            check(self.device.d.cuda.cuLaunchKernel(<CUfunction>handle, 1, 1, 1, launch.BLOCK, 1, 1, 0,
                                                    <CUstream>stream, <void**>parameters, NULL), "a kernel that meets")

    def abort(self) -> None:
        """Kernels that wait give up, and later ones do not wait."""
        if self.meet.host != NULL:
            hk_store32(self.meet.host, 1)

    @property
    def given_up(self) -> str:
        """Why a kernel has given up; "" if none has."""
        cdef char words[160]
        return words.decode() if gave_up(&self.meet, b"", words, sizeof(words)) else ""

    def close(self) -> None:
        """Not before all kernels have ended."""
        cdef uint32_t* host = self.meet.host
        self.meet.host = NULL
        if host != NULL:
            self.device.free_host(<uintptr_t>host)
