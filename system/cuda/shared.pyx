"""Memory of a GPU that other processes map, by CUDA's interprocess handles."""

from libc.string cimport memcpy

from hocket.system.cuda.driver cimport (
    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, CUipcMemHandle, Device, check, cuda,
)

from hocket.errors import TransportError

cdef enum:
    HANDLE = 64             # bytes


cdef int unpack(str handle, char* to) except -1:
    """A handle of memory or of an event, as a peer has told it."""
    cdef bytes given = bytes.fromhex(handle)
    if len(given) != HANDLE:
        raise TransportError(f"a handle must have {HANDLE} bytes, got {len(given)}")
    memcpy(to, <char*>given, HANDLE)
    return 0


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
        return (<bytes>handle.reserved[:HANDLE]).hex()

    def close(self) -> None:
        if self.address:
            self.device.free(self.address)
            self.address = 0


cdef class Mapped:
    """Another process's `Shared`, mapped here."""

    def __cinit__(self, Device device, str handle):
        cdef CUipcMemHandle raw
        unpack(handle, raw.reserved)
        self.device, self.address = device, 0
        with device:
            check(cuda.cuIpcOpenMemHandle_v2(&self.address, raw, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                  "a peer's memory cannot be mapped")

    def close(self) -> None:
        if self.address:
            with self.device, nogil:
                cuda.cuIpcCloseMemHandle(self.address)
            self.address = 0
