"""Channels over MPI; protocol.h is how."""

from cpython.pycapsule cimport PyCapsule_New
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free

from hocket.errors import TransportError
from hocket.transports.channel cimport HK_CAPSULE, hk_channel
from hocket.transports.mpi.library cimport Mpi, hk_mpi


cdef extern from "system/wait.h" nogil:
    uint64_t hk_now()

cdef extern from "transports/mpi/channel.h" nogil:
    enum: HK_MPI_SLOTS
    enum: HK_MPI_PIECES
    struct hk_mpi_packet:
        pass
    struct hk_mpi_end:
        hk_channel base
        hk_mpi* mpi
        uintptr_t comm
        int peer
        hk_mpi_packet* packets
    struct hk_mpi_sender:
        hk_mpi_end end
    struct hk_mpi_receiver:
        hk_mpi_end end
        char* stage[HK_MPI_PIECES]
    int hk_mpi_open(hk_mpi_sender*, hk_mpi_receiver*, int, int)
    int hk_mpi_close(hk_mpi_sender*, hk_mpi_receiver*, uint64_t)
    int hk_mpi_pinned(const hk_mpi_sender*, const hk_mpi_receiver*)


cdef struct Ends:
    hk_mpi_sender sender
    hk_mpi_receiver receiver


cdef class MpiPair:
    """The two channels to and from rank `peer` of the communicator with this handle.

    `send_tag` is the peer's, `recv_tag` ours; each takes the tag after it too.  Must be closed.
    """

    cdef Ends* ends             # memory that MPI may write into: freed only when nothing is under way
    cdef Mpi mpi
    cdef bint ended
    cdef readonly object send, recv     # capsules

    def __cinit__(self, Mpi mpi, uintptr_t comm, int peer, int send_tag, int recv_tag):
        cdef int rc
        self.mpi = mpi
        self.ends = <Ends*>calloc(1, sizeof(Ends))
        if self.ends == NULL:
            raise MemoryError
        for end in range(2):
            self.prepare(&self.ends.receiver.end if end else &self.ends.sender.end, comm, peer)
        rc = hk_mpi_open(&self.ends.sender, &self.ends.receiver, send_tag, recv_tag)
        if rc:
            raise TransportError(f"MPI refuses to receive from rank {peer}: error {rc}")
        self.send = PyCapsule_New(&self.ends.sender.end.base, HK_CAPSULE, NULL)
        self.recv = PyCapsule_New(&self.ends.receiver.end.base, HK_CAPSULE, NULL)

    cdef int prepare(self, hk_mpi_end* end, uintptr_t comm, int peer) except -1:
        end.mpi, end.comm, end.peer = self.mpi.table, comm, peer
        end.packets = <hk_mpi_packet*>calloc(HK_MPI_SLOTS, sizeof(hk_mpi_packet))
        if end.packets == NULL:
            raise MemoryError
        return 0

    def close(self, double seconds):
        """End what can be ended in that time.  False: something is still under way; call it again, or keep this."""
        cdef uint64_t deadline = hk_now() + <uint64_t>(seconds * 1e9)
        if not self.ended:
            with nogil:
                self.ended = hk_mpi_close(&self.ends.sender, &self.ends.receiver, deadline)
        return self.ended

    @property
    def pinned(self):
        """The number of requests that are under way on memory of callers."""
        return hk_mpi_pinned(&self.ends.sender, &self.ends.receiver)

    def __dealloc__(self):
        cdef int i
        if self.ended:
            for i in range(HK_MPI_PIECES):
                free(self.ends.receiver.stage[i])
            free(self.ends.sender.end.packets)
            free(self.ends.receiver.end.packets)
            free(self.ends)
