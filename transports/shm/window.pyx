"""Shared memory: a rank's window, and the rings of one lane inside it.

A window is an anonymous memfd that grows: no name is left behind, whatever is killed.  It is mapped once, into a
range of addresses reserved far beyond its end, so that it can grow without being mapped again.  To touch an address
beyond its end is SIGBUS, so whoever reads a peer's window keeps its descriptor, and asks that for the size.
"""

import os
import secrets
import threading

from cpython.buffer cimport PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.pycapsule cimport PyCapsule_New
from libc.errno cimport errno
from libc.stdint cimport uint32_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset, strerror
from posix.unistd cimport close
from posix.mman cimport MAP_ANONYMOUS, MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE, mmap, munmap

from hocket.errors import TransportError
from hocket.transports.channel cimport HK_CAPSULE, hk_channel, hk_channel_ops


cdef extern from "sys/mman.h" nogil:
    int MAP_NORESERVE

cdef extern from "system/atomics.h" nogil:
    uint32_t hk_load32(const uint32_t*)
    void hk_store32(uint32_t*, uint32_t)

cdef extern from "transports/shm/ring.h" nogil:
    enum: HK_NO_MEMORY
    enum: HK_SHARED_SLOTS
    enum: HK_SLOT_BYTES
    enum: HK_BY_REF_MIN
    size_t HK_LANE_BYTES(size_t size)
    struct hk_ring:
        uint32_t gone
    struct hk_shared_slots:
        hk_producer** reader[8]
        uint32_t* until[8]
    struct hk_producer:
        hk_channel base
        hk_ring* ring
        char* window
        size_t window_bytes
        int far
        int self
        hk_shared_slots* shared
        char* (*take)(void* lane, size_t nbytes) noexcept nogil
        void* lane
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
        char* stage
    const hk_channel_ops hk_producer_ops
    const hk_channel_ops hk_consumer_ops

cdef enum:
    PAGE = 4096
    TOKEN = 32          # bytes at offset 0: proves that a descriptor that came by is the promised window
    BELL = 128          # offset of the two words that the owner sleeps on
    FIRST = 8192        # the first byte that can be allocated

NO_MEMORY = HK_NO_MEMORY
SLOT, EAGER = HK_SLOT_BYTES, HK_BY_REF_MIN - 1   # bytes: of a slot, and of the longest message that is always copied
RESERVE = 1 << 36       # addresses kept for a window: 64 GiB, or less where a limit (ulimit -v) forbids it


cdef extern from "sys/vfs.h" nogil:
    struct statfs_t "statfs":
        long f_type
    int fstatfs(int, statfs_t*)

cdef extern from "linux/magic.h" nogil:
    enum: TMPFS_MAGIC

cdef extern from "sys/uio.h" nogil:
    struct iovec:
        void* iov_base
        size_t iov_len
    ssize_t process_vm_readv(int, const iovec*, unsigned long, const iovec*, unsigned long, unsigned long)


def read_memory(int pid, uintptr_t address, size_t nbytes):
    """These bytes of another process.  OSError: the system does not let us (another user, Yama, seccomp, a container)."""
    cdef bytearray found = bytearray(nbytes)
    cdef iovec here, there
    here.iov_base, here.iov_len = <char*>found, nbytes
    there.iov_base, there.iov_len = <void*>address, nbytes
    if process_vm_readv(pid, &here, 1, &there, 1, 0) != <ssize_t>nbytes:
        raise OSError(errno, strerror(errno).decode())
    return bytes(found)


cdef class Window:
    """Memory of one rank that all ranks of the host have mapped.

    `Window()` makes this process's own, `Window(fd)` maps a peer's (and takes the descriptor over, and keeps it: what
    the peer says to lie in its window is looked for within the descriptor's size).
    `private=True`: plain memory, for ranks that are threads of one process.
    """

    cdef readonly int fd
    cdef readonly size_t reserved, size
    cdef readonly bytes token
    cdef char* base
    cdef bint private
    cdef object lock        # threads allocate at once; `release` is called by finalizers, also in the middle of `alloc`
    cdef list holes         # (bytes, offset) given back
    cdef list retired       # (addresses of rings, blocks) of lanes that were closed, but may still be read

    def __cinit__(self, int fd=-1, bint private=False):
        cdef bint own = fd < 0
        cdef int flags = MAP_SHARED | MAP_NORESERVE | (MAP_ANONYMOUS if private else 0)
        self.base = NULL
        self.fd, self.private = fd, private
        self.holes, self.retired = [], []
        self.lock = threading.Lock()
        if own and not private:
            self.fd = os.memfd_create("hocket", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.reserved = RESERVE if not private else RESERVE // 16
        while True:
            self.base = <char*>mmap(NULL, self.reserved, PROT_READ | PROT_WRITE, flags, self.fd, 0)
            if self.base != <char*>MAP_FAILED:
                break
            self.base = NULL
            if self.reserved <= 1 << 28:
                raise TransportError(f"cannot map shared memory: {strerror(errno).decode()}; is `ulimit -v` set?")
            self.reserved //= 2
        if own:
            self.size = 0
            self._grow(FIRST)
            self.token = secrets.token_bytes(TOKEN)
            memcpy(self.base, <char*>self.token, TOKEN)
        else:
            self.size = self._proven_size()
            self.token = self.base[:TOKEN]

    cdef size_t _proven_size(self) except 0:
        """How large a peer's window is.  TransportError: it could turn a read into SIGBUS, or is none."""
        import fcntl
        cdef statfs_t found
        cdef size_t size = os.fstat(self.fd).st_size
        # One that can shrink does so under us.  One of huge pages may have none left when it is touched.
        sealed = fcntl.fcntl(self.fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
        if not sealed or size < FIRST or fstatfs(self.fd, &found) != 0 or found.f_type != TMPFS_MAGIC:
            raise TransportError("a peer offered shared memory that is not a sealed hocket window")
        return size

    def _grow(self, size_t size):
        import fcntl
        if self.fd < 0 and not self.private:
            raise TransportError("this rank has left the job: there is no more shared memory to be had from it")
        if size > self.reserved:
            raise MemoryError(f"shared memory of this rank is full: {size} bytes wanted, {self.reserved} addresses kept")
        if not self.private:
            try:
                os.posix_fallocate(self.fd, self.size, size - self.size)   # full memory: an error, not SIGBUS
            except OSError as e:
                raise MemoryError(f"no shared memory for {size - self.size} more bytes: {e.strerror}") from None
            if self.size == 0:
                fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self.size = size

    def alloc(self, size_t nbytes):
        """The offset of `nbytes` fresh bytes, page aligned and zero."""
        cdef size_t want = (max(nbytes, 1) + PAGE - 1) // PAGE * PAGE
        cdef size_t offset
        with self.lock:
            self._take_back()
            for hole in self.holes:
                if hole[0] == want:
                    self.holes.remove(hole)
                    offset = hole[1]
                    memset(self.base + offset, 0, want)
                    return offset
            offset = self.size
            self._grow(self.size + want)
            return offset

    def release(self, size_t offset, size_t nbytes):
        """Give `alloc`'s bytes back; a later `alloc` of the same size takes them again."""
        self.holes.append(((max(nbytes, 1) + PAGE - 1) // PAGE * PAGE, offset))

    cdef void _retire(self, list rings, list blocks):
        """Give these blocks of a lane back when the readers of its rings are gone."""
        self.retired.append((rings, blocks))

    cdef _take_back(self):
        for each in list(self.retired):
            rings, blocks = each
            if all(hk_load32(&(<hk_ring*><uintptr_t>ring).gone) for ring in rings):
                self.retired.remove(each)
                for offset, nbytes in blocks:
                    self.release(offset, nbytes)

    def leave(self):
        """Close the descriptor: no further growth.  What is mapped stays until the last array in it has gone."""
        cdef int fd = self.fd
        if fd >= 0:
            self.size = self.end()
            self.fd = -1    # first: a channel may be about to ask it for the size
            close(fd)

    def view(self, size_t offset, size_t nbytes):
        """These bytes, writable.  The caller keeps the window alive."""
        cdef size_t end = self.end()
        if offset > end or nbytes > end - offset:
            raise ValueError("outside of the window")
        return PyMemoryView_FromMemory(self.base + offset, nbytes, PyBUF_WRITE)

    cdef size_t end(self) except 0:
        """Up to where there is memory: beyond, an access is SIGBUS.  A private window is all there."""
        if self.private:
            return self.reserved
        return min(self.reserved, <size_t>os.fstat(self.fd).st_size) if self.fd >= 0 else self.size

    @property
    def address(self):
        return <uintptr_t>self.base

    @property
    def token_address(self):
        """Where this process keeps the token in memory of its own."""
        return <uintptr_t><char*>self.token

    def __dealloc__(self):
        if self.base != NULL:
            munmap(self.base, self.reserved)
        if self.fd >= 0:
            close(self.fd)


cdef char* take(void* lane, size_t nbytes) noexcept nogil:
    """Memory of the window's, kept until the lane is closed and no peer reads it.  NULL: there is none."""
    with gil:
        return (<RingLane>lane).more(nbytes)


cdef class RingLane:
    """The rings of one lane: this rank's block in its own window, and its readers' view of the peers' blocks.

    `windows[i]` is member i's window (None: not on this host), `rank` this rank's index among them.  `pids[i]`: of
    members whose memory this process may read; NO_MEMORY: it may not.
    """

    cdef Window own
    cdef list windows, pids
    cdef readonly int rank, size
    cdef readonly size_t offset
    cdef hk_producer* producers
    cdef hk_consumer* consumers
    cdef hk_shared_slots shared
    cdef list blocks        # (offset, bytes) of its window that it has
    cdef bint closed

    def __cinit__(self, int rank, list windows, list pids=None):
        cdef int i
        self.rank, self.size, self.windows = rank, len(windows), windows
        self.pids = pids or [NO_MEMORY] * self.size
        self.own = windows[rank]
        self.offset = self.own.alloc(HK_LANE_BYTES(self.size))
        self.producers = <hk_producer*>calloc(self.size, sizeof(hk_producer))
        self.consumers = <hk_consumer*>calloc(self.size, sizeof(hk_consumer))
        if self.producers == NULL or self.consumers == NULL:
            raise MemoryError
        self.blocks = [(self.offset, HK_LANE_BYTES(self.size))]
        for i in range(HK_SHARED_SLOTS):
            self.shared.reader[i] = <hk_producer**>calloc(self.size, sizeof(hk_producer*))
            self.shared.until[i] = <uint32_t*>calloc(self.size, sizeof(uint32_t))

    cdef char* more(self, size_t nbytes) noexcept:
        try:
            offset = self.own.alloc(nbytes)
        except Exception:
            return NULL
        self.blocks.append((offset, nbytes))
        return self.own.base + <size_t>offset

    def offer(self):
        """What the peers need to know: where this rank's block is, and which of them it can read."""
        return {"at": self.offset, "reads": [i for i in range(self.size) if self.pids[i] != NO_MEMORY]}

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
        if offset % PAGE or offset < FIRST or offset > end or HK_LANE_BYTES(self.size) > end - offset:
            raise TransportError(f"rank {peer} names a block outside its window")
        p.base.ops, p.base.fd = &hk_producer_ops, -1
        p.window, p.window_bytes = self.own.base, self.own.reserved
        p.far, p.self = far, os.getpid()
        p.ring = <hk_ring*>(self.own.base + self.offset) + peer
        p.shared, p.take, p.lane = &self.shared, take, <void*>self
        p.peer_bell = <uint32_t*>(theirs.base + BELL)
        p.base.bell = <uint32_t*>(self.own.base + BELL)
        c.base.ops, c.base.fd = &hk_consumer_ops, -1
        c.window, c.window_bytes, c.window_reserved, c.window_fd = theirs.base, end, theirs.reserved, &theirs.fd
        c.pid = self.pids[peer]
        c.ring = <hk_ring*>(theirs.base + offset) + self.rank
        c.peer_bell = p.peer_bell
        c.base.bell = p.base.bell
        return PyCapsule_New(&p.base, HK_CAPSULE, NULL), PyCapsule_New(&c.base, HK_CAPSULE, NULL)

    def close(self):
        """Read nothing any more, and give the memory back when no peer does either: what it was sent is still there."""
        cdef int i
        cdef hk_ring* rings = <hk_ring*>(self.own.base + self.offset)
        if self.closed:
            return
        self.closed = True
        for i in range(self.size):
            if self.consumers[i].ring != NULL:
                hk_store32(&self.consumers[i].ring.gone, 1)
        here = [i for i in range(self.size) if i != self.rank and self.windows[i] is not None]
        self.own._retire([<uintptr_t>(rings + i) for i in here], self.blocks)

    def __del__(self):
        if self.consumers != NULL and self.blocks is not None:
            self.close()

    def __dealloc__(self):
        cdef int i
        if self.consumers != NULL:
            for i in range(self.size):
                free(self.consumers[i].stage)
        free(self.producers)
        free(self.consumers)
        for i in range(HK_SHARED_SLOTS):
            free(self.shared.reader[i])
            free(self.shared.until[i])
