"""RDMA devices, and the memory that is registered with them: what is done once for a device or an array."""

import os
import weakref

from libc.errno cimport ENOMEM, errno
from libc.stdint cimport uint8_t, uint64_t, uintptr_t
from libc.string cimport memset

from hocket.transports.verbs.ibverbs cimport (
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_MW_BIND, IBV_DEVICE_MEM_WINDOW_TYPE_2B, IBV_PORT_ACTIVE, hk_ibv_open, ibv_device,
    ibv_device_attr, ibv_mr, ibv_port_attr,
)

from hocket.errors import TransportError

cdef extern from "pthread.h" nogil:
    int pthread_mutex_init(pthread_mutex_t*, void*)
    int pthread_mutex_lock(pthread_mutex_t*)
    int pthread_mutex_unlock(pthread_mutex_t*)

cdef extern from "transports/verbs/pins.h" nogil:
    enum:
        HK_V_PINS
    ibv_mr* hk_pins_take(hk_pins*, int, int)

LIBRARY = "libibverbs.so.1"
COPY_ON_FORK = (5, 12)
"""Linux that copies pinned pages for a child; before, libibverbs must keep them from it, at a price."""

cdef bint opened = False
_why = None


def library() -> str | None:
    """Open libibverbs: None, or why there is none."""
    global opened, _why
    cdef char why[256]
    if not opened and _why is None:
        if hk_ibv_open(&ibv, LIBRARY.encode(), why, sizeof(why)) != 0:
            _why = why.decode(errors="replace")
        else:
            opened = True
            if tuple(int(n) for n in os.uname().release.split("-")[0].split(".")[:2]) < COPY_ON_FORK:
                ibv.ibv_fork_init()
    return _why


def registers_dma_bufs() -> bool:
    """Can this libibverbs register another device's memory?"""
    return opened and ibv.ibv_reg_dmabuf_mr != NULL


def devices():
    """The names of this machine's RDMA devices.  OSError where the kernel has none (ENOSYS) or refuses."""
    cdef int n = 0, i
    if library():
        raise TransportError(library())
    cdef ibv_device** listed = ibv.ibv_get_device_list(&n)
    if listed == NULL:
        raise OSError(errno, os.strerror(errno))
    try:
        return [ibv.ibv_get_device_name(listed[i]).decode() for i in range(n)]
    finally:
        ibv.ibv_free_device_list(listed)


cdef refused(str what, int code=0):
    code = code or errno
    hint = "; raise `ulimit -l`: RDMA pins its buffers" if code == 12 else ""
    return TransportError(f"{what}: {os.strerror(code)} (errno {code}){hint}")


cdef class Device:
    """An open device: its protection domain, and the arrays that are registered with it."""

    def __cinit__(self, str name):
        cdef int n = 0, i
        cdef ibv_device_attr attr
        pthread_mutex_init(&self.pins.lock, NULL)
        self.name, self.owners = name, {}
        if library():
            raise TransportError(library())
        cdef ibv_device** listed = ibv.ibv_get_device_list(&n)
        if listed == NULL:
            raise refused("RDMA devices cannot be listed")
        for i in range(n):
            if ibv.ibv_get_device_name(listed[i]).decode() == name:
                self.context = ibv.ibv_open_device(listed[i])
        ibv.ibv_free_device_list(listed)
        if self.context == NULL:
            raise refused(f"the RDMA device {name} cannot be opened")
        memset(&attr, 0, sizeof(attr))
        if ibv.ibv_query_device(self.context, &attr) != 0:
            raise refused(f"{name} does not say what it can do")
        self.pd = ibv.ibv_alloc_pd(self.context)
        if self.pd == NULL:
            raise refused(f"{name} gives no protection domain")
        self.ports = attr.phys_port_cnt
        self.windows = bool(attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B)

    def port(self, int number):
        """(active, mtu code, lid, gids) of a port."""
        cdef ibv_port_attr attr
        memset(&attr, 0, sizeof(attr))
        code = ibv.ibv_query_port(self.context, <uint8_t>number, &attr)
        if code != 0:
            raise refused(f"{self.name} port {number}", code)
        return attr.state == IBV_PORT_ACTIVE, attr.active_mtu, attr.lid, attr.gid_tbl_len

    def gid(self, int port, int index):
        """16 bytes; zeros for an unused entry."""
        cdef uint8_t raw[16]
        memset(raw, 0, 16)
        ibv.ibv_query_gid(self.context, <uint8_t>port, index, raw)
        return bytes(raw[:16])

    def pin(self, uintptr_t address, size_t nbytes, owner, int dma_buf=-1, uint64_t offset=0) -> bool:
        """Register these bytes, which `owner` (weakly referenced) keeps alive, for as long as it lives.

        Another registration that nobody uses gives way if there is no room.  False: it cannot be.  `dma_buf`, `offset`:
        where they lie, if that is another device's memory (gpudirect.py).
        """
        cdef hk_pin* e = NULL
        cdef int i
        cdef ibv_mr* mr
        cdef int access = IBV_ACCESS_LOCAL_WRITE | (IBV_ACCESS_MW_BIND if self.windows else 0)
        if self.closed:
            return False
        for i in range(HK_V_PINS):
            e = &self.pins.pin[i]
            if e.mr == NULL or address + nbytes <= <uintptr_t>e.at or <uintptr_t>e.at + e.len <= address:
                continue
            held = self.owners.get(i)
            if held is not None and held() is owner:
                if <uintptr_t>e.at <= address and address + nbytes <= <uintptr_t>e.at + e.len:
                    return True
            elif not self._drop(i):     # somebody else's: perhaps of memory that is no more
                return False
        try:
            weakref.ref(owner)          # can its death be noticed?
        except TypeError:
            return False
        while True:
            if dma_buf >= 0:
                mr = ibv.ibv_reg_dmabuf_mr(self.pd, offset, nbytes, address, dma_buf, access)
            else:
                mr = ibv.ibv_reg_mr(self.pd, <void*>address, nbytes, access)
            if mr == NULL and errno != ENOMEM:
                return False            # to let others go would not help: it is read-only, or not mapped
            spare = self._spare(mr == NULL)
            if mr != NULL or spare < 0:
                break
        if mr == NULL or spare < 0:
            if mr != NULL:
                ibv.ibv_dereg_mr(mr)
            return False
        e = &self.pins.pin[spare]
        pthread_mutex_lock(&self.pins.lock)
        self.pins.clock += 1
        e.mr, e.at, e.len, e.uses, e.age = mr, <char*>address, nbytes, 0, self.pins.clock
        pthread_mutex_unlock(&self.pins.lock)
        device = weakref.ref(self)

        def gone(dead):
            here = device()
            if here is not None:
                here._unpin(spare)

        self.owners[spare] = weakref.ref(owner, gone)
        return True

    def _spare(self, bint make):
        """A free entry, else (or to `make` room) the one that has not been used for longest; -1: all are in use."""
        cdef int i, spare = -1
        cdef hk_pin* e
        pthread_mutex_lock(&self.pins.lock)
        for i in range(HK_V_PINS):
            e = &self.pins.pin[i]
            if e.mr == NULL and e.uses == 0 and not make:
                spare = i
                break
            if e.mr != NULL and e.uses == 0 and (spare < 0 or e.age < self.pins.pin[spare].age):
                spare = i
        pthread_mutex_unlock(&self.pins.lock)
        if spare >= 0 and self.pins.pin[spare].mr != NULL and not self._drop(spare):
            return self._spare(make)    # a channel has begun to use it
        return spare

    def _drop(self, int i):
        """Unpin, unless it is in use."""
        return self._unpin(i, False)

    def _unpin(self, int i, bint anyway=True):
        cdef ibv_mr* mr = hk_pins_take(&self.pins, i, anyway)
        if mr != NULL:
            self.owners.pop(i, None)
            ibv.ibv_dereg_mr(mr)
        return mr != NULL

    @property
    def pinned(self):
        """Registered arrays."""
        return len(self.owners)

    def close(self):
        """After all its channels."""
        for i in range(HK_V_PINS):
            self._unpin(i)
        self.closed = True
        device_free(self)

    def __dealloc__(self):
        cdef int i
        cdef ibv_mr* mr
        for i in range(HK_V_PINS):
            mr = hk_pins_take(&self.pins, i, True)
            if mr != NULL:
                ibv.ibv_dereg_mr(mr)
        device_free(self)


cdef void device_free(Device d) noexcept:
    """Close it, unless a channel still uses it (EBUSY): then the last one lets go of us, and we come again."""
    if d.pd != NULL and ibv.ibv_dealloc_pd(d.pd) != 0:
        return
    d.pd = NULL
    if d.context != NULL:
        ibv.ibv_close_device(d.context)
        d.context = NULL
