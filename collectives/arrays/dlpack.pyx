"""Arrays that offer their memory by DLPack and in no other way."""

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from libc.stdint cimport uintptr_t

from hocket.errors import ArgumentError
from hocket.kernels import dtypes

NAMES = {
    (0, 8): "int8", (0, 16): "int16", (0, 32): "int32", (0, 64): "int64",
    (1, 8): "uint8", (1, 16): "uint16", (1, 32): "uint32", (1, 64): "uint64",
    (2, 16): "float16", (2, 32): "float32", (2, 64): "float64", (4, 16): "bfloat16",
    (5, 64): "complex64", (5, 128): "complex128", (6, 8): "bool", (10, 8): "float8_e4m3fn", (12, 8): "float8_e5m2",
}
"""By DLPack's (code, bits)."""


def opened(array, str what, stream):
    """(keep, GPU or -1, address, shape, dtype, writable); the memory stays as long as `keep` does.

    `stream`: (GPU) -> the stream that will use the memory; that stream waits for work that still fills it.
    """
    cdef DLTensor* t
    cdef bint writable = True
    kind, gpu = array.__dlpack_device__()
    if kind not in (DLPACK_CPU, DLPACK_CUDA, DLPACK_CUDA_HOST):
        raise ArgumentError(
            f"{what} is on a device of DLPack's type {int(kind)}, neither the host nor a CUDA GPU: pass a copy in host "
            "memory"
        )
    gpu = int(gpu) if kind == DLPACK_CUDA else -1
    on = None if gpu < 0 else stream(gpu)
    try:
        capsule = array.__dlpack__(stream=on, max_version=(DLPACK_MAJOR, 0))
    except TypeError:       # before version 1
        capsule = array.__dlpack__(stream=on)
    except BufferError as why:
        raise ArgumentError(f"{what} does not give its memory away: {why}") from None
    if PyCapsule_IsValid(capsule, "dltensor_versioned"):
        managed = <DLManagedTensorVersioned*>PyCapsule_GetPointer(capsule, "dltensor_versioned")
        if managed.major != DLPACK_MAJOR:
            raise ArgumentError(f"{what} uses DLPack {managed.major}; hocket reads DLPack {DLPACK_MAJOR}")
        t, writable = &managed.tensor, not managed.flags & DLPACK_READ_ONLY
    else:
        # It cannot say that it is read-only, and JAX's arrays are: NumPy takes it so, too.
        t, writable = <DLTensor*>PyCapsule_GetPointer(capsule, "dltensor"), False
    name = NAMES.get((t.code, t.bits)) if t.lanes == 1 else None
    if name is None:
        raise ArgumentError(
            f"{what} has a dtype that hocket does not support: DLPack's code {t.code}, {t.bits} bits, {t.lanes} lanes"
        )
    shape = tuple(t.shape[i] for i in range(t.ndim))
    if t.strides != NULL and 0 not in shape:
        dense = 1
        for i in reversed(range(t.ndim)):
            if shape[i] > 1 and t.strides[i] != dense:
                raise ArgumentError(f"{what} is not C-contiguous; pass a contiguous copy")
            dense *= shape[i]
    return capsule, gpu, <uintptr_t>t.data + t.byte_offset, shape, dtypes.by_name(name), writable
