"""From the caller's array to (pointer, bytes, dtype), for all array types; the short way (shortcut.pyx) looks at NumPy's and torch's itself.

torch tensors are asked for `data_ptr` and friends, so torch is never imported here; anything else comes in through the
buffer protocol, `__array_interface__`, `__cuda_array_interface__` or DLPack.  Nothing is copied, except GPU arrays where
a call must go through host memory (staging.py).
"""

import sys

cimport numpy as np
import numpy
from libc.stdint cimport uintptr_t

from hocket.collectives.arrays import dlpack
from hocket.collectives.arrays import staging
from hocket.collectives.arrays.streams import current_stream
from hocket.arguments import kind
from hocket.errors import ArgumentError, MemoryError as NoMemory
from hocket.kernels import dtypes

np.import_array()

cdef dict NUMPY_DTYPES = {}     # numpy dtype -> DType, filled as they come
cdef dict TORCH_DTYPES = {}     # torch dtype -> DType
cdef object BYTES = dtypes.by_name("bytes")
cdef str FREED = "{0} has no memory: its storage was freed, or it stands for zeros; pass {0}.clone()"


cdef class Buffer:
    """An array of the caller's: address, shape, dtype.  Of one that is not contiguous, those of a copy that is."""

    cdef readonly uintptr_t address
    cdef readonly size_t nbytes, count
    cdef readonly tuple shape
    cdef readonly object dtype      # kernels.dtypes.DType
    cdef readonly object array      # what the caller gave us
    cdef readonly bint writable
    cdef public bint fresh          # made by us for the result
    cdef object export              # of a buffer, or by DLPack: what keeps its memory where it is
    cdef readonly object host       # the copy of an array that is strided, or on a GPU and staged
    cdef tuple there                # ... and its GPU and address
    cdef readonly int device        # the GPU that `address` is in; -1: it is in host memory
    cdef readonly bint foreign      # is the array in a GPU's memory, wherever `address` is?

    def __cinit__(self):
        self.device = -1

    def stage(self):
        """If it lies on a GPU, work on a copy in host memory from now on; `restore` writes it back."""
        cdef Buffer copy
        if not self.foreign or self.host is not None:
            return
        if staging.copies_itself(self.array):
            copy = describe(staging.to_host(self.array))
        elif self.device < 0:
            raise ArgumentError(
                f"a {type(self.array).__name__} is on a GPU, but the CUDA driver cannot be opened: copy it to the host"
            )
        else:
            copy = describe(numpy.empty(self.nbytes, numpy.uint8))
            staging.copy(self.array, self.device, copy.address, self.address, self.nbytes)
        self.there = self.device, self.address
        self.device, self.host, self.address = -1, copy.array, copy.address

    def restore(self):
        """Write the result back to where the caller wants it, if calls work on a copy."""
        if self.host is None:
            return
        if not self.foreign:
            if not self.writable:
                return      # the root of a broadcast: it was only read
            (self.array if self.export is None else self.export)[...] = self.host
        elif staging.copies_itself(self.array):
            staging.restore(self.array, self.host)
        else:
            gpu, address = self.there
            staging.copy(self.array, gpu, address, self.address, self.nbytes)

    @property
    def rows(self):
        """Length of axis 0; a scalar has none."""
        return self.shape[0] if self.shape else 0

    def __repr__(self):
        return f"{self.dtype.name}{list(self.shape)}"


cdef object numpy_dtype(object dtype, str what):
    row = NUMPY_DTYPES.get(dtype)
    if row is None:
        try:
            row = dtypes.from_numpy(dtype)
        except ArgumentError:
            if dtype.hasobject:
                raise ArgumentError(
                    f"{what} holds Python objects (dtype {dtype}), which cannot be sent as bytes: convert it, or pass "
                    "an array of numbers"
                ) from None
            name = f"bytes({dtype.itemsize})" if dtype.isnative else f"{dtype.str} (not in native byte order)"
            row = BYTES._replace(itemsize=dtype.itemsize, name=name)
        NUMPY_DTYPES[dtype] = row
    return row


def describe(array, str what="x"):
    """A `Buffer` over `array`, or an error that says what is wrong with it."""
    cdef Buffer b
    cdef np.ndarray a
    if isinstance(array, np.ndarray):
        a = <np.ndarray>array
        if not np.PyArray_CheckExact(a) and hasattr(array, "mask"):
            raise ArgumentError(
                f"{what} is a masked array, whose mask would be lost: pass {what}.filled(value) or {what}.data")
        if not np.PyArray_IS_C_CONTIGUOUS(a):
            return packed(describe(contiguous(array, what), what), array, np.PyArray_ISWRITEABLE(a))
        b = Buffer.__new__(Buffer)
        b.address = <uintptr_t>np.PyArray_DATA(a)
        b.nbytes = np.PyArray_NBYTES(a)
        b.count = np.PyArray_SIZE(a)
        b.shape = array.shape
        b.dtype = numpy_dtype(array.dtype, what)
        b.array = array
        b.writable = np.PyArray_ISWRITEABLE(a)
        return b
    if hasattr(array, "data_ptr") and isinstance(array, getattr(sys.modules.get("torch"), "Tensor", ())):
        return describe_torch(array, what)      # Paddle's and MindSpore's have a data_ptr too
    if hasattr(array, "__cuda_array_interface__"):
        return describe_device(array, what)
    try:
        view = numpy.asarray(array if hasattr(array, "__array_interface__") else memoryview(array))
    except (TypeError, ValueError, BufferError) as why:
        if hasattr(array, "__dlpack_device__"):
            return describe_dlpack(array, what)
        closed = "" if isinstance(why, TypeError) else f" that cannot be read ({why})"
        remedy = f"pass {what}.asnumpy(), or " if hasattr(array, "asnumpy") else "pass "   # MindSpore, which shares memory
        raise ArgumentError(
            f"{what} is {kind(array)}{closed}: {remedy}a NumPy array, a torch tensor, or anything with the buffer protocol "
            "or DLPack"
        ) from None
    b = describe(view, what)
    b.array, b.export = array, view     # as long as it is exported, a bytearray cannot be resized under us
    if isinstance(array, numpy.generic):
        b.writable = False              # `view` is a copy
    return b


cdef object contiguous(object array, str what):
    """A contiguous copy, or MemoryError."""
    try:
        return array.contiguous() if hasattr(array, "contiguous") else numpy.ascontiguousarray(array)
    except NotImplementedError:
        raise
    except (MemoryError, RuntimeError) as why:      # RuntimeError: torch's, which has no class of its own for it
        raise NoMemory(
            f"{what} is not contiguous, and there is not enough memory for a copy of its {array.nbytes} bytes ({why})"
        ) from None


cdef Buffer packed(Buffer copy, object array, bint writable):
    """`copy` of a strided array, which gets the result in the end."""
    copy.host, copy.array, copy.writable = copy.array, array, writable
    return copy


cdef Buffer describe_device(object array, str what):
    """A GPU array, where it is; or its copy in host memory if no driver knows where that is."""
    cdef Buffer b = Buffer.__new__(Buffer)
    gpu, b.address, b.shape, b.writable = staging.read_cuda_interface(array, what)
    b.dtype = numpy_dtype(numpy.dtype(array.dtype), what)
    b.array = array
    return placed(sized(b), gpu)


cdef Buffer describe_dlpack(object array, str what):
    """An array that says no more than DLPack does."""
    cdef Buffer b = Buffer.__new__(Buffer)
    b.export, gpu, b.address, b.shape, b.dtype, b.writable = dlpack.opened(
        array, what, lambda gpu: current_stream(array, gpu))
    b.array = array
    return placed(sized(b), gpu) if gpu >= 0 else sized(b)


cdef Buffer sized(Buffer b):
    """`b` with the elements and bytes that its shape and dtype give."""
    b.count = 1
    for n in b.shape:
        b.count *= n
    b.nbytes = b.count * b.dtype.itemsize
    return b


cdef Buffer placed(Buffer b, int gpu):
    """`b` on this GPU; or its copy in host memory, if no driver here knows the GPU (-1)."""
    b.device, b.foreign = gpu, True
    if gpu < 0 or not staging.has_driver():
        b.stage()
    return b


cdef object torch_dtype(object tensor):
    dtype = TORCH_DTYPES.get(tensor.dtype)
    if dtype is None:
        dtype = TORCH_DTYPES[tensor.dtype] = dtypes.from_torch_name(str(tensor.dtype))
    return dtype


cdef Buffer describe_torch(object tensor, str what):
    if type(tensor).__name__ not in ("Tensor", "Parameter"):
        raise ArgumentError(f"{what} is {kind(tensor)}, which has no memory of its own: pass a plain torch tensor")
    if tensor.layout.__str__() != "torch.strided":
        raise ArgumentError(f"{what} is a sparse tensor; pass {what}.to_dense() or its values")
    if not (tensor.is_cpu or tensor.is_cuda):
        raise ArgumentError(f"{what} is on {tensor.device}, whose memory cannot be read; pass {what}.cpu()")
    cdef Buffer b = Buffer.__new__(Buffer)
    dtype = torch_dtype(tensor)
    if tensor.is_neg() or tensor.is_conj():     # lazy: the memory holds other values than the tensor
        raise ArgumentError(f"{what} is a conjugated or negated view; pass {what}.resolve_conj().resolve_neg()")
    # What autograd records must not change behind its back.
    b.writable = not tensor.requires_grad or not sys.modules["torch"].is_grad_enabled()
    if not tensor.is_contiguous():
        if tensor.is_cuda:
            raise ArgumentError(f"{what} is not contiguous (strides {tuple(tensor.stride())}); pass {what}.contiguous()")
        end = tensor.storage_offset() + 1 + sum([(n - 1) * step for n, step in zip(tensor.shape, tensor.stride())])
        if tensor.untyped_storage().nbytes() < end * dtype.itemsize:
            raise ArgumentError(FREED.format(what))
        return packed(describe_torch(contiguous(tensor.detach(), what), what), tensor, b.writable)
    b.address = tensor.data_ptr()
    b.count = tensor.numel()
    b.nbytes = b.count * dtype.itemsize
    if b.nbytes and (b.address == 0 or tensor.untyped_storage().nbytes() < b.nbytes):
        raise ArgumentError(FREED.format(what))
    b.shape = tuple(tensor.shape)
    b.dtype, b.array = dtype, tensor
    return placed(b, tensor.get_device()) if tensor.is_cuda else b


def empty_like(Buffer model, tuple shape):
    """A new array of the model's kind and dtype (NumPy in, NumPy out; torch in, torch out) and this shape."""
    if model.foreign:
        return staging.empty_like(model.array, shape)
    dtype = model.array.dtype if hasattr(model.array, "dtype") else numpy.dtype(model.dtype.numpy)
    try:
        return model.array.new_empty(shape) if hasattr(model.array, "new_empty") else numpy.empty(shape, dtype)
    except NotImplementedError:
        raise
    # ValueError: more bytes than there are addresses; RuntimeError: torch's, which has no class of its own for either
    except (MemoryError, OverflowError, ValueError, RuntimeError) as why:
        raise NoMemory(f"the result has shape {shape}, for which there is not enough memory ({why})") from None


def overlap(Buffer a, Buffer b):
    """Do the two share memory?"""
    return a.nbytes and b.nbytes and a.address < b.address + b.nbytes and b.address < a.address + a.nbytes
