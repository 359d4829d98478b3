"""GPUs, their memory, streams and words by the CUDA driver.

Control path only: what is done once for a device or a peer.  libcuda is opened when it is first asked for.
"""

import threading

from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.string cimport memset

from hocket.errors import TransportError

LIBRARY = "libcuda.so.1"
URGENT = -100
"""A priority above all others; CUDA takes the nearest that it has.  Streams of one priority may share a queue of
the hardware, where one waits behind another."""

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
                    _why = f"the CUDA driver does not start: {error_text(code)}"
                opened = code == 0
    return _why


cdef str error_text(int code):
    cdef const char* words = NULL
    cuda.cuGetErrorString(code, &words)
    return f"{words.decode() if words != NULL else 'unknown'} (CUDA error {code})"


cdef int check(int code, str what) except -1:
    if code != 0:
        raise TransportError(f"{what}: {error_text(code)}")
    return 0


def count() -> int:
    """The number of GPUs; TransportError if the driver is missing."""
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


def current() -> int:
    """The GPU that this thread works on: the first, if it has not said; -1: there is no driver."""
    cdef CUdevice handle = 0
    if library():
        return -1
    return handle if cuda.cuCtxGetDevice(&handle) == 0 else 0


def device(int ordinal) -> Device:
    """This process's one object of the GPU."""
    with _lock:
        gpu = _devices.get(ordinal)
    if gpu is None:
        fresh = Device(ordinal)
        with _lock:
            gpu = _devices.setdefault(ordinal, fresh)
    return gpu


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
        self.functions, self.modules, self.spare = {}, {}, []

    def side_by_side(self) -> bool:
        """Does work of several processes run at once here, by CUDA's Multi-Process Service (MPS)?  Else they take turns."""
        cdef int served = 0
        return cuda.cuDeviceGetAttribute(&served, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, self.handle) == 0 and served == 1

    def alloc(self, size_t nbytes) -> int:
        """The address of so many bytes of the GPU's memory (cuMemAlloc: other processes may map it)."""
        cdef uint64_t address = 0
        cdef CUresult rc
        with self, nogil:
            rc = cuda.cuMemAlloc_v2(&address, nbytes)
        check(rc, f"{nbytes} bytes of GPU {self.ordinal}'s memory")
        return address

    def free(self, uint64_t address) -> None:
        """Waits for the GPU, so without the GIL: it may be another thread that ends a stream's wait (mark.h)."""
        cdef CUresult rc
        with self, nogil:
            rc = cuda.cuMemFree_v2(address)
        check(rc, "memory to give back")

    def alloc_host(self, size_t nbytes) -> int:
        """The address of so many bytes of host memory that GPUs reach too (pinned)."""
        cdef void* memory = NULL
        cdef CUresult rc
        with self, nogil:
            rc = cuda.cuMemHostAlloc(&memory, nbytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP)
        check(rc, f"{nbytes} bytes of pinned memory for GPU {self.ordinal}")
        return <uintptr_t>memory

    def free_host(self, uintptr_t address) -> None:
        """Waits for the GPU, as `free` does."""
        with self, nogil:
            cuda.cuMemFreeHost(<void*>address)

    def stream(self, int priority=0) -> int:
        """A new stream, which waits for no other."""
        cdef CUstream stream = NULL
        with self:
            check(cuda.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, priority), "a stream")
        return <uintptr_t>stream

    def end_stream(self, uintptr_t stream) -> None:
        with self:
            check(cuda.cuStreamDestroy_v2(<CUstream>stream), "a stream to give back")

    def take_stream(self) -> int:
        """A stream whose address a user may keep; `give_stream` takes it back."""
        return self.spare.pop() if self.spare else self.stream()

    def give_stream(self, uintptr_t stream) -> None:
        """Take back a stream whose work has ended.  It is never destroyed: when memory is freed, however long after,
        torch's allocator asks for the streams that it was used in."""
        self.spare.append(stream)

    def event(self) -> int:
        """A new event of this process alone."""
        cdef CUevent event = NULL
        with self:
            check(cuda.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), f"an event of GPU {self.ordinal}")
        return <uintptr_t>event

    def end_event(self, uintptr_t event) -> None:
        with self:
            check(cuda.cuEventDestroy_v2(<CUevent>event), "an event to give back")

    def synchronize(self, uintptr_t stream) -> None:
        """Wait until all that was issued to `stream` has been done."""
        cdef CUresult rc
        with self, nogil:
            rc = cuda.cuStreamSynchronize(<CUstream>stream)
        check(rc, "the work on a stream")

    def settle(self) -> None:
        """Wait until all that was issued to this GPU has been done, or has failed."""
        with self, nogil:
            cuda.cuCtxSynchronize()

    def is_done(self, uintptr_t stream) -> bool:
        """Has all been done that was issued to `stream`?"""
        cdef CUresult rc
        with self:
            rc = cuda.cuStreamQuery(<CUstream>stream)
        if rc == CUDA_ERROR_NOT_READY:
            return False
        check(rc, "the work on a stream")
        return True

    def clear(self, uintptr_t address, size_t nbytes) -> None:
        """Set memory of this GPU to 0, and wait for that."""
        with self:
            check(cuda.cuMemsetD8Async(address, 0, nbytes, NULL), "memory to clear")
        self.synchronize(0)

    def write_word(self, uint64_t address, uint32_t value, uintptr_t stream) -> None:
        """Write 4 bytes of a GPU's memory, in stream order."""
        self._word(address, value, stream, False)

    def wait_word(self, uint64_t address, uint32_t value, uintptr_t stream) -> None:
        """Let work that `stream` is given from now on wait until this word is at least `value`; see mark.h."""
        self._word(address, value, stream, True)

    cdef int _word(self, uint64_t address, uint32_t value, uintptr_t stream, bint wait) except -1:
        cdef int rc
        if cuda.cuStreamWaitValue32_v2 == NULL or cuda.cuStreamWriteValue32_v2 == NULL:
            raise TransportError("the CUDA driver is older than 11.7")
        with self:
            rc = (hk_mark_wait if wait else hk_mark_write)(&self.d, <void*>stream, address, value)
        if rc != 0:
            raise TransportError(self.d.words.decode())
        return 0

    def is_capturing(self, uintptr_t stream) -> bool:
        """Is `stream` being recorded into a graph?"""
        cdef CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE
        with self:
            check(cuda.cuStreamIsCapturing(<CUstream>stream, &status), "a stream's state")
        return status != CU_STREAM_CAPTURE_STATUS_NONE

    def copy(self, uintptr_t to, uintptr_t source, size_t nbytes, uintptr_t stream) -> None:
        """Copy between any two places, in stream order."""
        cdef int rc
        with self, nogil:       # to or from host memory it may wait for the stream
            rc = hk_device_copy(&self.d, <void*>stream, <void*>to, <void*>source, nbytes)
        if rc != 0:
            raise TransportError(self.d.words.decode())

    def follow(self, uintptr_t stream, uintptr_t other) -> None:
        """Let work that `stream` is given from now on wait for what `other` has been given until now."""
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

    def record(self, uintptr_t event, uintptr_t stream) -> None:
        """From now on `event` is where `stream` is now."""
        with self:
            check(cuda.cuEventRecord(<CUevent>event, <CUstream>stream), "an event to record")

    def wait_event(self, uintptr_t stream, uintptr_t event) -> None:
        """Let work that `stream` is given from now on wait until this event has been reached."""
        with self:
            check(cuda.cuStreamWaitEvent(<CUstream>stream, <CUevent>event, 0), "an event to wait for")

    def function(self, key, str name, load) -> int:
        """The kernel `name` of the module `key`; `load()` gives its image, the first time."""
        cdef CUmodule module = NULL
        cdef CUfunction kernel = NULL
        cdef bytes image
        cdef const char* code
        cdef CUresult rc
        if (key, name) not in self.functions:
            image = load() if key not in self.modules else b""
            if image:
                code = image
                with self, nogil:   # it may wait for the GPU
                    rc = cuda.cuModuleLoadData(&module, code)
                check(rc, f"the module of {name}")
                self.modules[key] = <uintptr_t>module
            with self:
                module = <CUmodule><uintptr_t>self.modules[key]
                check(cuda.cuModuleGetFunction(&kernel, module, name.encode()), f"the kernel {name}")
            self.functions[key, name] = <uintptr_t>kernel
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
