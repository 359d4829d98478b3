"""GPUs, their memory, streams and events by the CUDA driver; and lanes between GPUs of one host (cuda_ipc.h).

Control path only: what is done once for a device, a lane or a peer.  libcuda is opened when it is first asked for.
"""

import threading

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from hocket.transports.channel cimport HK_CAPSULE, hk_channel

from hocket.errors import TransportError

LIBRARY = "libcuda.so.1"
SLOT = HK_C_SLOT_BYTES
"""Bytes of a piece that a channel takes at once."""

cdef hk_cuda cuda
cdef bint opened = False
_why = None
_lock = threading.Lock()
_devices = {}


def library() -> str | None:
    """Open the driver: None, or why this process has none.  Creates no context."""
    global opened, _why
    cdef char why[256]
    with _lock:
        if not opened and _why is None:
            if hk_cuda_open(&cuda, LIBRARY.encode(), why, sizeof(why)) != 0:
                _why = why.decode(errors="replace")
            else:
                code = cuda.cuInit(0)
                if code != 0:
                    _why = f"the CUDA driver does not start: {_text(code)}"
                opened = code == 0
    return _why


cdef str _text(int code):
    cdef const char* words = NULL
    cuda.cuGetErrorString(code, &words)
    return f"{words.decode() if words != NULL else 'unknown'} (CUDA error {code})"


cdef int check(int code, str what) except -1:
    if code != 0:
        raise TransportError(f"{what}: {_text(code)}")
    return 0


def count() -> int:
    """How many GPUs there are; TransportError if the driver is missing."""
    cdef int n = 0
    if library():
        raise TransportError(library())
    check(cuda.cuDeviceGetCount(&n), "the GPUs cannot be counted")
    return n


def device_of(uintptr_t address) -> int:
    """The GPU that this memory belongs to; -1: none's."""
    cdef int ordinal = -1, kind = 0
    if library() or cuda.cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) != 0:
        return -1
    if kind != CU_MEMORYTYPE_DEVICE:
        return -1
    check(cuda.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address), "a pointer's GPU")
    return ordinal


def device(int ordinal) -> Device:
    """This process's one object of the GPU."""
    with _lock:
        found = _devices.get(ordinal)
    if found is None:
        made = Device(ordinal)
        with _lock:
            found = _devices.setdefault(ordinal, made)
    return found


cdef class Device:
    """A GPU and its primary context, which CuPy and torch use too."""

    def __cinit__(self, int ordinal):
        cdef char name[100]
        cdef CUuuid uuid
        cdef int value[3]
        if library():
            raise TransportError(library())
        self.d.cuda = &cuda
        check(cuda.cuDeviceGet(&self.handle, ordinal), f"there is no GPU {ordinal}")
        check(cuda.cuDevicePrimaryCtxRetain(&self.d.context, self.handle), f"GPU {ordinal} gives no context")
        self.d.ordinal = self.ordinal = ordinal
        memset(name, 0, sizeof(name))
        check(cuda.cuDeviceGetName(name, sizeof(name) - 1, self.handle), f"the name of GPU {ordinal}")
        check(cuda.cuDeviceGetUuid_v2(&uuid, self.handle), f"the UUID of GPU {ordinal}")
        self.name, self.uuid = name.decode(errors="replace"), (<bytes>uuid.bytes[:16]).hex()
        for i, what in enumerate((CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                                  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                                  CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)):
            check(cuda.cuDeviceGetAttribute(&value[i], what, self.handle), f"an attribute of GPU {ordinal}")
        self.capability, self.multiprocessors = (value[0], value[1]), value[2]
        self.functions, self.modules = {}, {}

    def alloc(self, size_t nbytes) -> int:
        """The address of so many bytes of the GPU's memory (cuMemAlloc: other processes may map it)."""
        cdef uint64_t address = 0
        with self:
            check(cuda.cuMemAlloc_v2(&address, nbytes), f"{nbytes} bytes of GPU {self.ordinal}'s memory")
        return address

    def free(self, uint64_t address) -> None:
        with self:
            check(cuda.cuMemFree_v2(address), "memory to give back")

    def stream(self) -> int:
        """A new stream, which waits for no other."""
        cdef CUstream made = NULL
        with self:
            check(cuda.cuStreamCreate(&made, CU_STREAM_NON_BLOCKING), "a stream")
        return <uintptr_t>made

    def end_stream(self, uintptr_t stream) -> None:
        with self:
            check(cuda.cuStreamDestroy_v2(<CUstream>stream), "a stream to give back")

    def event(self) -> int:
        """A new event of this process alone."""
        cdef CUevent made = NULL
        with self:
            check(cuda.cuEventCreate(&made, CU_EVENT_DISABLE_TIMING), "an event")
        return <uintptr_t>made

    def end_event(self, uintptr_t event) -> None:
        with self:
            check(cuda.cuEventDestroy_v2(<CUevent>event), "an event to give back")

    def synchronize(self, uintptr_t stream) -> None:
        """Wait until all that was issued to `stream` has been done."""
        cdef CUresult rc
        with self, nogil:
            rc = cuda.cuStreamSynchronize(<CUstream>stream)
        check(rc, "the work on a stream")

    def is_capturing(self, uintptr_t stream) -> bool:
        """Is `stream` being recorded into a graph?"""
        cdef CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE
        with self:
            check(cuda.cuStreamIsCapturing(<CUstream>stream, &status), "a stream's state")
        return status != CU_STREAM_CAPTURE_STATUS_NONE

    def copy(self, uintptr_t to, uintptr_t source, size_t nbytes, uintptr_t stream) -> None:
        """Between any two places, in stream order."""
        with self:
            if hk_device_copy(&self.d, <void*>stream, <void*>to, <void*>source, nbytes) != 0:
                raise TransportError(self.d.words.decode())

    def follow(self, uintptr_t stream, uintptr_t other) -> None:
        """What `stream` is given from now on waits for what `other` has been given until now."""
        cdef CUevent event = NULL
        if stream == other:
            return
        with self:
            check(cuda.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "an event")
            try:
                check(cuda.cuEventRecord(event, <CUstream>other), "an event to record")
                check(cuda.cuStreamWaitEvent(<CUstream>stream, event, 0), "an event to wait for")
            finally:
                cuda.cuEventDestroy_v2(event)   # the driver keeps it until its waiters are served

    def function(self, key, str name, load) -> int:
        """The kernel `name` of the module `key`; `load()` gives its image, the first time."""
        cdef CUmodule module = NULL
        cdef CUfunction found = NULL
        cdef bytes image
        if (key, name) not in self.functions:
            image = load() if key not in self.modules else b""
            with self:
                if image:
                    check(cuda.cuModuleLoadData(&module, <char*>image), f"the module of {name}")
                    self.modules[key] = <uintptr_t>module
                module = <CUmodule><uintptr_t>self.modules[key]
                check(cuda.cuModuleGetFunction(&found, module, name.encode()), f"the kernel {name}")
            self.functions[key, name] = <uintptr_t>found
        return self.functions[key, name]

    def __enter__(self):
        # A stack for each thread: it may be nested.
        check(cuda.cuCtxPushCurrent_v2(self.d.context), f"GPU {self.ordinal}'s context")
        return self

    def __exit__(self, *exc):
        cdef CUcontext none
        cuda.cuCtxPopCurrent_v2(&none)

    def __repr__(self):
        return f"GPU {self.ordinal} ({self.name})"


cdef class Shared:
    """Memory of `device` that other processes may map."""

    def __cinit__(self, Device device, size_t nbytes):
        self.device, self.address = device, 0
        self.address = device.alloc(nbytes)

    @property
    def handle(self) -> str:
        cdef CUipcMemHandle handle
        with self.device:
            check(cuda.cuIpcGetMemHandle(&handle, self.address), "memory to share with other processes")
        return (<bytes>handle.reserved[:64]).hex()

    def close(self) -> None:
        if self.address:
            self.device.free(self.address)
            self.address = 0


cdef class Mapped:
    """Another process's `Shared`, mapped here."""

    def __cinit__(self, Device device, str handle):
        cdef CUipcMemHandle raw
        cdef bytes given = bytes.fromhex(handle)
        if len(given) != 64:
            raise TransportError(f"a handle of {len(given)} bytes, not 64")
        memcpy(raw.reserved, <char*>given, 64)
        self.device, self.address = device, 0
        with device:
            check(cuda.cuIpcOpenMemHandle_v2(&self.address, raw, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                  "a peer's memory cannot be mapped")

    def close(self) -> None:
        if self.address:
            with self.device:
                cuda.cuIpcCloseMemHandle(self.address)
            self.address = 0


cdef CUevent new_event() except NULL:
    cdef CUevent event = NULL
    check(cuda.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS), "an event for other processes")
    return event


cdef void end_event(CUevent event) noexcept:
    if event != NULL:
        cuda.cuEventDestroy_v2(event)


cdef str event_handle(CUevent event):
    cdef CUipcEventHandle handle
    check(cuda.cuIpcGetEventHandle(&handle, event), "an event to share")
    return (<bytes>handle.reserved[:64]).hex()


cdef CUevent open_event(str handle) except NULL:
    cdef CUipcEventHandle raw
    cdef CUevent event = NULL
    cdef bytes given = bytes.fromhex(handle)
    if len(given) != 64:
        raise TransportError(f"an event's handle of {len(given)} bytes, not 64")
    memcpy(raw.reserved, <char*>given, 64)
    check(cuda.cuIpcOpenEventHandle(&event, raw), "a peer's event cannot be opened")
    return event


cdef class Lane:
    """Channels of GPU memory among `size` ranks of this host, of which this is `index`.

    Cost: 4 slots of 4 MiB for each peer and 8 more; 16 events for each peer and 8 more.
    """

    def __init__(self, Device device, int index, int size):
        cdef int i, peer
        self.device, self.index, self.mapped, self.below = device, index, {}, []
        self.window = Shared(device, (size * HK_C_SLOTS + HK_C_SHARED) * HK_C_SLOT_BYTES)
        self.lane.device, self.lane.size = &device.d, size
        self.lane.window = <char*><uintptr_t>self.window.address
        self.lane.pair = <hk_c_pair**>calloc(size, sizeof(hk_c_pair*))
        self.pairs = <hk_c_pair*>calloc(size, sizeof(hk_c_pair))
        if self.lane.pair == NULL or self.pairs == NULL:
            raise MemoryError
        try:
            with device:
                self._make_events()
        except BaseException:
            self.close(True)
            raise

    cdef int _make_events(self) except -1:
        cdef int i, peer
        for i in range(HK_C_SHARED):
            self.lane.ready[i] = new_event()
        for peer in range(self.lane.size):
            if peer != self.index:
                for i in range(HK_C_SLOTS):
                    self.pairs[peer].ready[i] = new_event()
                for i in range(HK_C_ALL):
                    self.pairs[peer].done[i] = new_event()
        return 0

    def offer(self) -> dict:
        """What the peers need to open their side (JSON)."""
        cdef int peer
        with self.device:
            return {
                "window": self.window.handle, "shared": [event_handle(self.lane.ready[i]) for i in range(HK_C_SHARED)],
                "ready": [self._handles(self.pairs[peer].ready, HK_C_SLOTS, peer) for peer in range(self.lane.size)],
                "done": [self._handles(self.pairs[peer].done, HK_C_ALL, peer) for peer in range(self.lane.size)],
            }

    cdef list _handles(self, CUevent* events, int n, int peer):
        return [event_handle(events[i]) for i in range(n)] if peer != self.index else []

    def open(self, int peer, dict offer, out, in_):
        """Channels (to, from) `peer` over these host channels, which carry the packets."""
        cdef hk_c_pair* p = &self.pairs[peer]
        cdef int i, size = self.lane.size
        cdef Mapped mapped = Mapped(self.device, offer["window"])
        self.mapped[peer] = mapped
        ready, done = offer["ready"][self.index] + offer["shared"], offer["done"][self.index]
        if len(ready) != HK_C_ALL or len(done) != HK_C_ALL:
            raise TransportError("a peer offers another number of events than ours")
        with self.device:
            for i in range(HK_C_ALL):
                p.peer_ready[i], p.peer_done[i] = open_event(ready[i]), open_event(done[i])
        p.theirs = <char*><uintptr_t>mapped.address + <size_t>self.index * HK_C_SLOTS * HK_C_SLOT_BYTES
        p.their_shared = <char*><uintptr_t>mapped.address + <size_t>size * HK_C_SLOTS * HK_C_SLOT_BYTES
        self.below.append((out, in_))
        hk_c_open(p, &self.lane, peer, <hk_channel*>PyCapsule_GetPointer(out, HK_CAPSULE),
                  <hk_channel*>PyCapsule_GetPointer(in_, HK_CAPSULE))
        return PyCapsule_New(&p.tx.base, HK_CAPSULE, NULL), PyCapsule_New(&p.rx.base, HK_CAPSULE, NULL)

    def end(self, int peer) -> bool:
        """Nothing of that peer's is used here any more: unmap it, and tell.  False: it has not told so yet.

        All that this side has read, or sent, is waited for first.
        """
        cdef hk_c_pair* p = &self.pairs[peer]
        cdef CUresult rc
        cdef int i
        if self.lane.pair[peer] == NULL:
            return True
        if peer in self.mapped:
            with self.device:
                for i in range(HK_C_ALL):
                    with nogil:
                        rc = cuda.cuEventSynchronize(p.done[i])
                    cuda.cuEventDestroy_v2(p.peer_ready[i])
                    cuda.cuEventDestroy_v2(p.peer_done[i])
            self.mapped.pop(peer).close()
            hk_c_post(p, HK_C_BYE, 0, 0, 0, 0)
        hk_c_pump(p)
        return p.bye or p.ended

    def close(self, bint clean) -> None:
        """Give everything back; the window only if no peer has it mapped any more (`clean`)."""
        cdef int i, peer
        if self.lane.pair == NULL:
            return
        with self.device:
            for peer in range(self.lane.size):
                if peer == self.index:
                    continue
                for i in range(HK_C_ALL):
                    end_event(self.pairs[peer].done[i])
                for i in range(HK_C_SLOTS):
                    end_event(self.pairs[peer].ready[i])
            for i in range(HK_C_SHARED):
                end_event(self.lane.ready[i])
        for mapped in self.mapped.values():
            mapped.close()
        self.mapped.clear()
        if clean:
            self.window.close()
        free(self.lane.pair)
        self.lane.pair = NULL

    def __dealloc__(self):
        free(self.lane.pair)
        free(self.pairs)
