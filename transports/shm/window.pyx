"""Shared memory: a rank's window.

It is an anonymous memfd that grows: no name is left behind, whatever is killed.  It is mapped once, into a
range of addresses reserved far beyond its end, so that it can grow without being mapped again (where `ulimit -v` is set,
the windows of all local ranks together take an eighth of what it allows, and the program has the rest).  To touch an address
beyond its end is SIGBUS, so whoever reads a peer's window keeps its descriptor, and asks that for the size.
"""

import errno as errors
import os
import resource
import secrets
import threading

from cpython.buffer cimport PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.errno cimport errno
from libc.stdint cimport uint32_t, uintptr_t
from libc.string cimport memcpy, memset, strerror
from posix.unistd cimport close
from posix.mman cimport MAP_ANONYMOUS, MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE, mmap, munmap

from hocket.errors import MemoryError as NoMemory
from hocket.errors import TransportError


cdef extern from "sys/mman.h" nogil:
    int MAP_NORESERVE

cdef extern from "linux/mempolicy.h" nogil:
    enum: MPOL_PREFERRED

cdef extern from "sys/syscall.h" nogil:
    long SYS_mbind

cdef extern from "unistd.h" nogil:
    long syscall(long, ...)

cdef extern from "system/atomics.h" nogil:
    uint32_t hk_load32(const uint32_t*)

RESERVE = 1 << 36       # addresses kept for a window: 64 GiB, or less where `room` says so
LITTLE = FIRST          # as long as nobody knows how many ranks there are
NODES = 1024            # of NUMA, as many as Linux has
LEAST = 1 << 25         # with less, a few communicators of many ranks would fill it
ALL = 1 << 46           # addresses for all windows together: half of what a process has
HINTS = {errors.EFBIG: "; `ulimit -f` limits it, which counts shared memory as a file"}


def address_limit():
    """Bytes of addresses that this process may have (ulimit -v); None: as many as there are."""
    cdef object soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def room(ranks, limit):
    """Addresses to reserve for the window of each of `ranks` ranks, if a process may have `limit` (or None) for all."""
    if limit is None:
        return min(RESERVE, ALL // ranks)
    return min(RESERVE, max(LEAST, limit // (8 * ranks) // PAGE * PAGE))


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
    cdef bytearray data = bytearray(nbytes)
    cdef iovec local, remote
    local.iov_base, local.iov_len = <char*>data, nbytes
    remote.iov_base, remote.iov_len = <void*>address, nbytes
    if process_vm_readv(pid, &local, 1, &remote, 1, 0) != <ssize_t>nbytes:
        raise OSError(errno, strerror(errno).decode())
    return bytes(data)


cdef class Window:
    """Memory of one rank that all ranks of the host have mapped.

    `Window()` makes this process's own, `Window(fd)` maps a peer's (and takes the descriptor over, and keeps it: what
    the peer says to lie in its window is looked for within the descriptor's size).  `reserve`: the addresses kept for it.
    `private=True`: plain memory, for ranks that are threads of one process.
    """

    def __cinit__(self, int fd=-1, bint private=False, size_t reserve=RESERVE):
        cdef bint own = fd < 0
        self.base = NULL
        self.fd, self.private, self.node = fd, private, -1
        self.holes, self.retired = [], []
        self.lock = threading.Lock()
        if own and not private:
            try:
                self.fd = os.memfd_create("hocket", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            except OSError as e:
                raise TransportError(f"no shared memory can be made: memfd_create: {e.strerror}") from None
        self._map(reserve)
        if own:
            self.size = 0
            self._grow(FIRST)
            self.token = secrets.token_bytes(TOKEN)
            memcpy(self.base, <char*>self.token, TOKEN)
        else:
            self.size = self._proven_size()
            self.token = self.base[:TOKEN]

    cdef int _map(self, size_t reserve) except -1:
        cdef int flags = MAP_SHARED | MAP_NORESERVE | (MAP_ANONYMOUS if self.private else 0)
        cdef char* base = <char*>mmap(NULL, reserve, PROT_READ | PROT_WRITE, flags, self.fd, 0)
        if base == <char*>MAP_FAILED:
            raise TransportError(
                f"cannot map {reserve >> 20} MiB for shared memory: {strerror(errno).decode()}; is `ulimit -v` set?"
            )
        self.base, self.reserved = base, reserve
        return 0

    def keep(self, size_t reserve):
        """Reserve so many addresses from now on, or as many as there are.  Nothing that was allocated is in use yet."""
        cdef char* base = self.base
        cdef size_t reserved = self.reserved
        while reserve > reserved:
            try:
                self._map(reserve)
            except TransportError:
                reserve //= 2
            else:
                munmap(base, reserved)
                break

    cdef size_t _proven_size(self) except 0:
        """The proven size of a peer's window.  TransportError: it could turn a read into SIGBUS, or is none."""
        import fcntl
        cdef statfs_t filesystem
        cdef size_t size = os.fstat(self.fd).st_size
        # One that can shrink does so under us.  One of huge pages may have none left when it is touched.
        sealed = fcntl.fcntl(self.fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
        if not sealed or size < FIRST or fstatfs(self.fd, &filesystem) != 0 or filesystem.f_type != TMPFS_MAGIC:
            raise TransportError("a peer offered shared memory that is not a sealed hocket window")
        return size

    def _grow(self, size_t size):
        import fcntl
        if self.fd < 0 and not self.private:
            raise TransportError("this rank has left the job, so it gives no more shared memory")
        if size > self.reserved:
            raise NoMemory(
                f"shared memory of this rank is full: it needs {size} bytes more, and {self.reserved} addresses are reserved"
                f"{'; a larger `ulimit -v` gives it more' if address_limit() is not None else ''}"
            )
        if not self.private:
            try:
                os.posix_fallocate(self.fd, self.size, size - self.size)   # full memory: an error, not SIGBUS
            except OSError as e:
                hint = HINTS.get(e.errno, "")
                raise NoMemory(f"no shared memory for {size - self.size} more bytes: {e.strerror}{hint}") from None
            if self.size == 0:
                fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self.size = size

    def alloc(self, size_t nbytes, int node=-1):
        """The offset of `nbytes` fresh bytes, page aligned and zero.  `node`: of whoever reads them, where they will lie."""
        cdef size_t want = (max(nbytes, 1) + PAGE - 1) // PAGE * PAGE
        cdef size_t offset
        with self.lock:
            self._take_back()
            for hole in self.holes:
                if hole[0] == want and hole[2] == node:
                    self.holes.remove(hole)
                    offset = hole[1]
                    memset(self.base + offset, 0, want)
                    return offset
            offset = self.size
            self._place(offset, want, node)
            self._grow(self.size + want)
            return offset

    cdef void _place(self, size_t offset, size_t nbytes, int node):
        """Before these pages are there: they come from this NUMA node, as long as it has some.

        To grow takes them at once, for the owner, who only writes: without this they would lie on its own node.  A
        system that refuses this (a container, no such node) has them there.
        """
        cdef unsigned long[16] mask     # NODES bits
        if 0 <= node < NODES and offset + nbytes <= self.reserved:
            memset(mask, 0, sizeof(mask))
            mask[node // 64] = 1UL << (node % 64)
            syscall(SYS_mbind, self.base + offset, nbytes, <int>MPOL_PREFERRED, mask, <unsigned long>NODES, <int>0)

    def release(self, size_t offset, size_t nbytes, int node=-1):
        """Give `alloc`'s bytes back; a later `alloc` of the same size and node takes them again."""
        self.holes.append(((max(nbytes, 1) + PAGE - 1) // PAGE * PAGE, offset, node))

    cdef void retire(self, list words, list blocks):
        """Give these blocks back when every reader of them has set its word, of which these are the addresses."""
        self.retired.append((words, blocks))

    cdef _take_back(self):
        for each in list(self.retired):
            words, blocks = each
            if all(hk_load32(<uint32_t*><uintptr_t>word) for word in words):
                self.retired.remove(each)
                for block in blocks:
                    self.release(*block)

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
