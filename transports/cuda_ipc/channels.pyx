"""Channels between the GPU memories of ranks of one host (protocol.h): what is made once for each communicator and peer."""

from cpython.pycapsule cimport PyCapsule_New
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from hocket.transports.channel cimport HK_CAPSULE, channel_of
from hocket.system.cuda.driver cimport (CU_EVENT_DISABLE_TIMING, CU_EVENT_INTERPROCESS,
                                     CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, CUevent, CUipcEventHandle,
                                     CUresult, CUstream, Device, check, error_text, hk_cuda)
from hocket.system.cuda.shared cimport Mapped, Shared, unpack

from hocket.errors import TransportError
from hocket.system.cuda.driver import URGENT


cdef extern from "system/atomics.h" nogil:
    void hk_store32(uint32_t*, uint32_t)


SLOT = HK_C_SLOT_BYTES
"""Bytes of a piece that a channel takes at once."""
SEGMENT = HK_C_SLOTS * HK_C_SLOT_BYTES
"""Bytes of a pipelined chunk.  Of registered memory it is one piece: few long kernels, as each waits for a mark first.
docs/gpu.md has what other sizes gave."""

cdef enum:
    HANDLE = 64             # bytes


cdef CUevent new_event(const hk_cuda* cuda) except NULL:
    cdef CUevent event = NULL
    check(cuda.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS), "an event for other processes")
    return event


cdef str event_handle(const hk_cuda* cuda, CUevent event):
    cdef CUipcEventHandle handle
    check(cuda.cuIpcGetEventHandle(&handle, event), "an event to share")
    return (<bytes>handle.reserved[:HANDLE]).hex()


cdef CUevent open_event(const hk_cuda* cuda, str handle) except NULL:
    cdef CUipcEventHandle raw
    cdef CUevent event = NULL
    unpack(handle, raw.reserved)
    check(cuda.cuIpcOpenEventHandle(&event, raw), "a peer's event cannot be opened")
    return event


cdef class CudaChannels:
    """Channels of GPU memory among `size` ranks of this host, of which this is `index`.

    `words`: their marks are words in the windows, else events (mark.h); the same on all of them.  `room`: bytes of each
    window that the channels have no use for.
    Cost: 4 slots of 8 MiB for each rank and 8 more; 16 events for each peer and 8 more, if it is events.
    """

    def __init__(self, Device device, int index, int size, bint words, size_t room=0):
        cdef size_t own = size * HK_C_WORDS * sizeof(uint32_t) + room
        self.cuda = device.d.cuda
        self.device, self.index, self.words, self.mapped, self.below, self.events = device, index, words, {}, [], []
        self.common.pair = <hk_c_pair**>calloc(size, sizeof(hk_c_pair*))
        self.pairs = <hk_c_pair*>calloc(size, sizeof(hk_c_pair))
        if self.common.pair == NULL or self.pairs == NULL:
            raise MemoryError
        self.window = Shared(device, self._slots(size) + own)
        self.common.device, self.common.size = &device.d, size
        self.common.window = <char*><uintptr_t>self.window.address
        try:
            device.clear(self._word(self.window.address, 0), own)
            if words:
                self.escape = <CUstream><uintptr_t>device.stream(URGENT)
            else:
                with device:
                    self._make_events()
        except BaseException:
            self.close(True)
            raise

    @staticmethod
    def _slots(int size):
        return (<size_t>size * HK_C_SLOTS + HK_C_SHARED) * HK_C_SLOT_BYTES

    cdef uint64_t _word(self, uint64_t window, int of):
        """The place in a window: where the words begin that member `of` writes."""
        return window + <size_t>self._slots(self.common.size) + <size_t>of * HK_C_WORDS * sizeof(uint32_t)

    def room(self, int member) -> int:
        """Where its own bytes begin in the window of `member`, which is this rank or has been opened; zeros at first."""
        window = self.window if member == self.index else self.mapped[member]
        return self._word(window.address, self.common.size)

    cdef int _make_events(self) except -1:
        cdef int i, peer
        cdef uintptr_t shared
        for i in range(HK_C_SHARED):
            self._event()
        for peer in range(self.common.size):
            if peer != self.index:
                for i in range(HK_C_ALL):
                    if i < HK_C_SLOTS:
                        self.pairs[peer].ready[i].event = self._event()
                    else:
                        shared = self.events[i - HK_C_SLOTS]
                        self.pairs[peer].ready[i].event = <CUevent>shared
                    self.pairs[peer].done[i].event = self._event()
        return 0

    cdef CUevent _event(self) except NULL:
        cdef CUevent event = new_event(self.cuda)
        self.events.append(<uintptr_t>event)
        return event

    def offer(self) -> dict:
        """The offer that the peers need to open their side (JSON)."""
        cdef int peer, size = self.common.size
        if self.words:
            return {"window": self.window.handle}
        with self.device:
            return {
                "window": self.window.handle,
                "ready": [self._handles(self.pairs[peer].ready, HK_C_ALL, peer) for peer in range(size)],
                "done": [self._handles(self.pairs[peer].done, HK_C_ALL, peer) for peer in range(size)],
            }

    cdef list _handles(self, hk_mark* marks, int n, int peer):
        return [event_handle(self.cuda, marks[i].event) for i in range(n)] if peer != self.index else []

    def open(self, int peer, dict offer, out, in_):
        """Channels (to, from) `peer` over these host channels, which carry the packets."""
        cdef hk_c_pair* p = &self.pairs[peer]
        cdef int i
        cdef uint64_t ours, theirs
        cdef Mapped mapped = Mapped(self.device, offer["window"])
        self.mapped[peer] = mapped
        if self.words:
            ours, theirs = self._word(self.window.address, peer), self._word(mapped.address, self.index)
            for i in range(HK_C_ALL):
                p.peer_ready[i].word, p.ready[i].word = ours + 4 * i, theirs + 4 * i
                p.peer_done[i].word, p.done[i].word = ours + 4 * (HK_C_ALL + i), theirs + 4 * (HK_C_ALL + i)
        else:
            ready, done = offer["ready"][self.index], offer["done"][self.index]
            if len(ready) != HK_C_ALL or len(done) != HK_C_ALL:
                raise TransportError("a peer offers another number of events than this rank")
            with self.device:
                for i in range(HK_C_ALL):
                    p.peer_ready[i].event, p.peer_done[i].event = open_event(self.cuda, ready[i]), open_event(self.cuda, done[i])
        p.theirs = <char*><uintptr_t>mapped.address + <size_t>self.index * HK_C_SLOTS * HK_C_SLOT_BYTES
        p.their_shared = <char*><uintptr_t>mapped.address + <size_t>self.common.size * HK_C_SLOTS * HK_C_SLOT_BYTES
        self.below.append((out, in_))
        hk_c_open(p, &self.common, peer, channel_of(out), channel_of(in_))
        return PyCapsule_New(&p.tx.base, HK_CAPSULE, NULL), PyCapsule_New(&p.rx.base, HK_CAPSULE, NULL)

    def register(self, uint64_t address) -> str:
        """Let peers read the allocation that `address` lies in where it is; why they cannot, or "".

        It must stay until the channels are closed.
        """
        cdef uint32_t n = self.common.registered.count
        cdef hk_r_memory* memory = &self.common.registered.memory[n]
        cdef int capable = 0
        cdef CUresult rc
        for i in range(n):
            if address - self.common.registered.memory[i].at < self.common.registered.memory[i].size:
                return ""
        if n == HK_R_MOST:
            return f"{n} allocations are registered already"
        with self.device:
            self.cuda.cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address)
            if not capable:
                return "its allocator makes memory that CUDA does not share between processes (a pool, or virtual memory)"
            rc = self.cuda.cuMemGetAddressRange_v2(&memory.at, &memory.size, address)
            if rc == 0:
                rc = self.cuda.cuIpcGetMemHandle(&memory.handle, memory.at)
            if rc != 0:
                return f"CUDA does not share it: {error_text(rc)}"
        hk_store32(&self.common.registered.count, n + 1)
        return ""

    def release(self) -> bool:
        """Nothing more will come: let the streams go that wait for a peer.  False: the driver refuses.

        A peer that lives sets its marks still, and may so undo it: say it again for some time.
        """
        cdef int peer, rc = 0
        if not self.words:
            return True     # no stream waits for events of a peer's
        if not self.device.is_done(<uintptr_t>self.escape):
            return True
        with self.device:
            for peer in range(self.common.size):
                if self.common.pair != NULL and self.common.pair[peer] != NULL and rc == 0:
                    rc = hk_c_release(self.common.pair[peer], self.escape)
        return rc == 0

    def end(self, int peer) -> bool:
        """Nothing of that peer's is used here any more: unmap it, and tell.  False: it has not told so yet.

        All that this side has read, or sent, is waited for first.
        """
        cdef hk_c_pair* p = &self.pairs[peer]
        cdef hk_c_packet goodbye
        memset(&goodbye, 0, sizeof(goodbye))
        goodbye.kind = HK_C_BYE
        if self.common.pair[peer] == NULL:
            return True
        if peer in self.mapped:
            self._let_go(peer)
            hk_c_post(p, goodbye)
        hk_c_pump(p)
        return p.bye or p.ended

    def _let_go(self, int peer) -> None:
        """Wait until nothing here uses the peer's memory, and unmap it."""
        cdef hk_c_pair* p = &self.pairs[peer]
        cdef int i
        with self.device:
            with nogil:
                self.cuda.cuCtxSynchronize()    # kernels may use its own bytes too
            if not self.words:
                for i in range(HK_C_ALL):
                    self.cuda.cuEventDestroy_v2(p.peer_ready[i].event)
                    self.cuda.cuEventDestroy_v2(p.peer_done[i].event)
        self._unmap(peer)

    def _unmap(self, int peer) -> None:
        cdef hk_c_pair* p = &self.pairs[peer]
        cdef int i
        self.mapped.pop(peer).close()
        with self.device, nogil:
            for i in range(HK_R_MOST):
                if p.registered.at[i]:
                    self.cuda.cuIpcCloseMemHandle(p.registered.at[i])
                    p.registered.at[i] = 0

    def close(self, bint clean) -> None:
        """Give everything back; the window only if no peer has it mapped any more (`clean`).

        But not events of peers who have not said goodbye: CUDA wants nobody to touch those when they are gone.
        """
        if self.common.pair == NULL:
            return
        with self.device:
            for event in self.events:
                self.cuda.cuEventDestroy_v2(<CUevent><uintptr_t>event)
            if self.escape != NULL:
                self.cuda.cuStreamDestroy_v2(self.escape)
        for peer in list(self.mapped):
            self._unmap(peer)
        if clean:
            self.window.close()
        free(self.common.pair)
        self.common.pair, self.escape, self.events = NULL, NULL, []

    def __dealloc__(self):
        free(self.common.pair)
        free(self.pairs)
