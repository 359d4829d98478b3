"""DLPack (dlpack.h, version 1): a tensor's memory as a C structure.

It comes in a capsule of `__dlpack__`, or by the C exchange API, in some 20 ns and without a call into Python.  A type
with this API has the attribute `__dlpack_c_exchange_api__`, a capsule; torch's has it since 2.10.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    DLPACK_MAJOR = 1
    DLPACK_CPU = 1
    DLPACK_CUDA = 2
    DLPACK_CUDA_HOST = 3            # pinned memory of the host
    DLPACK_FLOAT = 2                # of code; the rest as NumPy's kinds
    DLPACK_COMPLEX = 5
    DLPACK_READ_ONLY = 1            # of flags

ctypedef struct DLTensor:
    void* data
    int32_t device_type, device_id
    int32_t ndim
    uint8_t code, bits              # of the dtype
    uint16_t lanes
    int64_t* shape
    int64_t* strides                # in elements; NULL: row-major
    uint64_t byte_offset

ctypedef struct DLManagedTensorVersioned:
    uint32_t major, minor
    void* context
    void* deleter
    uint64_t flags
    DLTensor tensor

ctypedef struct DLPackExchangeAPI:
    uint32_t major, minor
    void* older
    void* allocate
    int (*managed_from_object)(void*, void**)
    int (*managed_to_object)(void*, void**)
    int (*tensor_from_object)(void* x, DLTensor* out) except -1
    int (*current_stream)(int32_t, int32_t, void**)
