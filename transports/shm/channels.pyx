"""The rings of one communicator (ring.h), inside the ranks' windows."""

import os

from cpython.pycapsule cimport PyCapsule_New
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free

from hocket.errors import TransportError
from hocket.system.machine import maker
from hocket.transports.channel cimport HK_CAPSULE, hk_channel, hk_channel_ops
from hocket.transports.shm.window cimport BELL, FIRST, PAGE, Window


cdef extern from "system/atomics.h" nogil:
    void hk_store32(uint32_t*, uint32_t)

cdef extern from "unistd.h" nogil:
    enum: _SC_LEVEL2_CACHE_SIZE
    int getpid()
    long sysconf(int)

cdef extern from "transports/shm/ring.h" nogil:
    enum: HK_NO_MEMORY
    enum: HK_SHARED_SLOTS
    enum: HK_FIRST_SHARED
    enum: HK_FIRST_CIRCLE
    enum: HK_SLOT_BYTES
    enum: HK_BY_REF_MIN
    uint64_t HK_NEVER
    size_t HK_RINGS_BYTES(size_t size)
    struct hk_ring:
        uint32_t gone
    struct hk_shared_slots:
        uint32_t count, most
        hk_producer** reader[32]
        uint32_t* until[32]
    struct hk_producer:
        hk_channel base
        hk_ring* ring
        char* window
        size_t window_bytes
        int far
        uint64_t far_moved, far_reduced
        int self
        int reader
        hk_consumer* back
        uint32_t slots_bytes, slots_most
        hk_shared_slots* shared
        char* (*take)(void* taker, size_t nbytes, const char** why) noexcept nogil
        void* taker
        uint32_t* peer_bell
        uint32_t next
    struct hk_consumer:
        hk_channel base
        hk_ring* ring
        const char* window
        size_t window_bytes
        size_t window_reserved
        const int* window_fd
        int pid
        uint32_t* peer_bell
        const hk_producer* reply
        char* stage
        const char* own
        size_t own_bytes

cdef extern from "transports/shm/send.h" nogil:
    const hk_channel_ops hk_producer_ops

cdef extern from "transports/shm/receive.h" nogil:
    const hk_channel_ops hk_consumer_ops

cdef extern from "transports/shm/checked.h" nogil:
    struct hk_checked_writer:
        hk_channel base
        hk_channel* under
    struct hk_checked_reader:
        hk_channel base
        hk_channel* under
    const hk_channel_ops hk_checked_writer_ops, hk_checked_reader_ops
    void hk_checked_over(hk_channel*, const hk_channel_ops*, const hk_channel*)

NO_MEMORY = HK_NO_MEMORY
SLOT, EAGER = HK_SLOT_BYTES, HK_BY_REF_MIN - 1   # bytes: of a slot, and of the longest message that is always copied


READS = {
    "GenuineIntel": ((HK_BY_REF_MIN, 1 << 20, 1 << 21, 1 << 16, 1 << 16), (HK_BY_REF_MIN, 1 << 20)),
    "": ((1 << 22, None, 1 << 17, 1 << 24, 1 << 20), (1 << 20, None)),
}
"""By the CPU's maker, where `hocket tune` has not measured it: the fields of `Reads` (choice/tuning.py; docs/performance.md).
They say from how many bytes on a peer reads a message out of this process's memory, and from how many on ways are tried.
First where each rank has a core; then where ranks outnumber cores, so that one copy instead of two is what counts."""
L2 = max(sysconf(_SC_LEVEL2_CACHE_SIZE), 0) or 1 << 20      # bytes of a core's own cache; some systems do not say
LEAST, MOST = HK_FIRST_CIRCLE, 1 << 22


def circle(own_cache, peers):
    """Bytes of the circle that the slots of one ring are cut from: all rings together are twice a core's own cache.

    So a slot that is written again has left the caches of the two cores, and is in the one that they share.
    """
    each = 2 * own_cache // max(1, peers)
    return min(max(1 << max(0, each.bit_length() - 1), LEAST), MOST)


cdef struct Taker:
    void* channels
    int reader      # of a multicast slot: the first one


cdef char* take(void* taker, size_t nbytes, const char** why) noexcept nogil:
    """Memory of the window's, kept until the channels are closed and no peer reads it.  NULL: there is none."""
    with gil:
        return (<RingChannels>(<Taker*>taker).channels).more((<Taker*>taker).reader, nbytes, why)


cdef class RingChannels:
    """The rings of one communicator: this rank's block in its own window, and its readers' view of the peers' blocks.

    `windows[i]` is member i's window (None: not on this host), `rank` this rank's index among them.  `pids[i]`: of
    members whose memory this process may read; NO_MEMORY: it may not.  checked: messages carry a check (checked.h).
    """

    cdef Window own
    cdef list windows, pids
    cdef readonly int rank, size
    cdef readonly bint checked
    cdef readonly tuple usual           # the rules of `read_from` where nothing was measured, as in READS
    cdef readonly size_t offset
    cdef hk_producer* producers
    cdef hk_consumer* consumers
    cdef Taker* takers
    cdef hk_checked_writer* writers     # NULL: nothing is checked
    cdef hk_checked_reader* readers
    cdef hk_shared_slots shared
    cdef readonly list blocks   # (offset, bytes, the NUMA node of who reads it) of its window that it has
    cdef bytes full         # why it could have no more, once that was so
    cdef bint closed
    cdef int pid            # whose they are: a fork of it gives nothing back
    cdef readonly uint32_t circle       # bytes that the slots of one ring go round in
    cdef uint64_t far_moved, far_reduced
    cdef tuple tried

    def __cinit__(self, int rank, list windows, list pids=None, bint checked=False):
        cdef int i
        self.rank, self.size, self.windows, self.checked = rank, len(windows), windows, checked
        self.pids = pids or [NO_MEMORY] * self.size
        self.own, self.pid = windows[rank], getpid()
        self.circle = circle(L2, sum(window is not None for window in windows) - 1)
        self.usual = READS.get(maker(), READS[""])
        self.read_from(*self.usual[0])
        self.offset = self.own.alloc(HK_RINGS_BYTES(self.size))
        self.producers = <hk_producer*>calloc(self.size, sizeof(hk_producer))
        self.consumers = <hk_consumer*>calloc(self.size, sizeof(hk_consumer))
        self.takers = <Taker*>calloc(self.size, sizeof(Taker))
        if self.producers == NULL or self.consumers == NULL or self.takers == NULL:
            raise MemoryError
        if checked:
            self.writers = <hk_checked_writer*>calloc(self.size, sizeof(hk_checked_writer))
            self.readers = <hk_checked_reader*>calloc(self.size, sizeof(hk_checked_reader))
            if self.writers == NULL or self.readers == NULL:
                raise MemoryError
        self.blocks = [(self.offset, HK_RINGS_BYTES(self.size), -1)]
        self.shared.count, self.shared.most = HK_FIRST_SHARED, HK_SHARED_SLOTS
        for i in range(HK_SHARED_SLOTS):
            self.shared.reader[i] = <hk_producer**>calloc(self.size, sizeof(hk_producer*))
            self.shared.until[i] = <uint32_t*>calloc(self.size, sizeof(uint32_t))

    cdef char* more(self, int reader, size_t nbytes, const char** why) noexcept:
        node = (<Window>self.windows[reader]).node
        try:
            offset = self.own.alloc(nbytes, node)
        except Exception as error:
            self.full = self.full or str(error).encode()    # channels point to it
            why[0] = self.full
            return NULL
        self.blocks.append((offset, nbytes, node))
        return self.own.base + <size_t>offset

    def offer(self):
        """The offer that the peers need: where this rank's block is, which of them it can read, and whether to reduce
        too."""
        reads = [i for i in range(self.size) if self.pids[i] != NO_MEMORY]
        return {"at": self.offset, "reads": reads, "from": self.usual}

    def read_from(self, moved, reduced, *tried):
        """Peers read messages of so many bytes out of this process's memory from now on; None: never.

        Where ways are tried, from `tried` on, each call says which (HK_READ ...).
        On all members alike, while none has a call under way.
        """
        cdef int i
        self.far_moved, self.far_reduced = (HK_NEVER if n is None else n for n in (moved, reduced))
        self.tried = tried
        if self.producers != NULL:
            for i in range(self.size):
                self.producers[i].far_moved, self.producers[i].far_reduced = self.far_moved, self.far_reduced

    def agree(self, offers):
        """Does every member read every other's memory?  Then the first member's rules are everybody's."""
        everybody = all(offer and len(offer["reads"]) == self.size - 1 for offer in offers)
        if everybody:
            self.usual = tuple(map(tuple, offers[0]["from"]))
        return everybody

    @property
    def rule(self):
        """The latest rule that `read_from` was given."""
        return _bytes(self.far_moved), _bytes(self.far_reduced), *self.tried

    def open(self, int peer, offer):
        """The channels (to, from) member `peer`."""
        cdef size_t offset
        cdef hk_producer* p = &self.producers[peer]
        cdef hk_consumer* c = &self.consumers[peer]
        cdef Window theirs = self.windows[peer]
        cdef size_t end = theirs.end()
        try:
            offset, far = offer["at"], self.rank in offer["reads"]
        except (KeyError, TypeError, OverflowError):
            raise TransportError(f"rank {peer} does not say where its block is: {offer!r}") from None
        if offset % PAGE or offset < FIRST or offset > end or HK_RINGS_BYTES(self.size) > end - offset:
            raise TransportError(f"rank {peer} names a block outside its window")
        p.base.ops, p.base.fd = &hk_producer_ops, -1
        p.window, p.window_bytes = self.own.base, self.own.reserved
        p.far, p.self, p.reader = far, os.getpid(), self.pids[peer]
        p.far_moved, p.far_reduced = self.far_moved, self.far_reduced
        p.ring = <hk_ring*>(self.own.base + self.offset) + peer
        self.takers[peer].channels, self.takers[peer].reader = <void*>self, peer
        p.shared, p.take, p.taker = &self.shared, take, <void*>&self.takers[peer]
        p.slots_bytes, p.slots_most = HK_FIRST_CIRCLE, self.circle
        p.peer_bell = <uint32_t*>(theirs.base + BELL)
        p.base.bell = <uint32_t*>(self.own.base + BELL)
        c.base.ops, c.base.fd = &hk_consumer_ops, -1
        c.window, c.window_bytes, c.window_reserved, c.window_fd = theirs.base, end, theirs.reserved, &theirs.fd
        c.pid, c.own, c.own_bytes, p.back = self.pids[peer], self.own.base, self.own.reserved, c
        c.ring = <hk_ring*>(theirs.base + offset) + self.rank
        c.peer_bell, c.reply = p.peer_bell, p
        c.base.bell = p.base.bell
        if self.writers != NULL:
            self.writers[peer].under, self.readers[peer].under = &p.base, &c.base
            hk_checked_over(&self.writers[peer].base, &hk_checked_writer_ops, &p.base)
            hk_checked_over(&self.readers[peer].base, &hk_checked_reader_ops, &c.base)
            return (PyCapsule_New(&self.writers[peer].base, HK_CAPSULE, NULL),
                    PyCapsule_New(&self.readers[peer].base, HK_CAPSULE, NULL))
        return PyCapsule_New(&p.base, HK_CAPSULE, NULL), PyCapsule_New(&c.base, HK_CAPSULE, NULL)

    def close(self):
        """Read nothing any more, and give the memory back when no peer does either: what it was sent is still there."""
        cdef int i
        cdef hk_ring* rings = <hk_ring*>(self.own.base + self.offset)
        if self.closed or getpid() != self.pid:
            return
        self.closed = True
        for i in range(self.size):
            if self.consumers[i].ring != NULL:
                hk_consumer_ops.forget(&self.consumers[i].base)     # what a peer writes into its stage
                hk_store32(&self.consumers[i].ring.gone, 1)
        here = [i for i in range(self.size) if i != self.rank and self.windows[i] is not None]
        self.own.retire([<uintptr_t>&rings[i].gone for i in here], self.blocks)

    def __del__(self):
        if self.consumers != NULL and self.blocks is not None:
            self.close()

    def __dealloc__(self):
        cdef int i
        if self.consumers != NULL:
            for i in range(self.size):
                free(self.consumers[i].stage)
        free(self.producers)
        free(self.takers)
        free(self.consumers)
        free(self.writers)
        free(self.readers)
        for i in range(HK_SHARED_SLOTS):
            free(self.shared.reader[i])
            free(self.shared.until[i])


cdef _bytes(uint64_t n):
    return None if n == HK_NEVER else n
