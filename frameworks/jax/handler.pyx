"""XLA's entry for every call of hocket in a compiled program.

It makes NumPy arrays of XLA's buffers, which stay where they are, and passes them to the function that `calls` has under
the text of the attribute "call".  An exception becomes the program's error, with its text.
"""

cimport numpy as np
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject, PyTypeObject
from cpython.pycapsule cimport PyCapsule_New
from cpython.ref cimport Py_INCREF

from hocket.jax.xla_ffi cimport (
    ArrayBuffer, BUFFER, CallFrame, INTERNAL, MAJOR, METADATA, Metadata, MetadataExtension, NewError, Operands, Span,
    STRING, TOKEN,
)

np.import_array()

cdef extern from "numpy/arrayobject.h":
    ctypedef struct PyArray_Descr:
        pass
    object PyArray_NewFromDescr(
        PyTypeObject* kind, PyArray_Descr* dtype, int ndim, const np.npy_intp* shape, const np.npy_intp* strides,
        void* data, int flags, PyObject* owner)
    int NPY_ARRAY_CARRAY, NPY_ARRAY_CARRAY_RO

calls = {}
"""Functions by each call's text, as bytes: function(arguments, results), given tuples of NumPy arrays."""
dtypes = {}
"""NumPy dtypes by XLA's numbers for types: the NumPy dtype."""
cdef object explain = repr


def explain_by(function):
    """`function` gets the exception of a call that failed, and gives the program's error as bytes."""
    global explain
    explain = function


cdef object array(ArrayBuffer* b, int flags):
    dtype = dtypes.get(b.dtype)
    if dtype is None:
        raise TypeError(f"XLA type {b.dtype} is not supported")
    Py_INCREF(dtype)        # which the new array takes
    return PyArray_NewFromDescr(
        <PyTypeObject*>np.ndarray, <PyArray_Descr*>dtype, <int>b.ndim, <np.npy_intp*>b.shape, NULL, b.data, flags, NULL)


cdef tuple arrays(Operands* operands, int flags):
    """The operands that are arrays; the rest are tokens."""
    found = []
    for i in range(operands.size):
        if operands.kinds[i] == BUFFER and operands.buffers[i].dtype != TOKEN:
            found.append(array(operands.buffers[i], flags))
    return tuple(found)


cdef object text(CallFrame* frame):
    """The attribute "call", the only text there is."""
    cdef Span* span
    for i in range(frame.attributes.size):
        if frame.attributes.kinds[i] == STRING:
            span = <Span*>frame.attributes.values[i]
            return PyBytes_FromStringAndSize(span.data, span.length)
    return b""


cdef void* failed(CallFrame* frame, const char* message) noexcept nogil:
    cdef NewError error
    error.struct_size, error.extensions = sizeof(NewError), NULL
    error.message, error.code = message, INTERNAL
    return frame.api.make_error(&error)


cdef void* perform(CallFrame* frame) noexcept with gil:
    try:
        name = text(frame)
        call = calls.get(name)
        if call is None:
            raise RuntimeError(
                f"the call {name.decode()!r} is not known in this process: compile a program that calls hocket "
                "in the process that runs it")
        call(arrays(&frame.arguments, NPY_ARRAY_CARRAY_RO), arrays(&frame.results, NPY_ARRAY_CARRAY))
        return NULL
    except BaseException as error:      # there is no Python caller to raise to
        message = explain(error)
        return failed(frame, message)


cdef void* handle(CallFrame* frame) noexcept nogil:
    cdef Metadata* metadata
    if frame.extensions != NULL and frame.extensions.kind == METADATA:
        metadata = (<MetadataExtension*>frame.extensions).metadata
        metadata.version.major, metadata.version.minor = MAJOR, 0
        if frame.api != NULL and frame.api.version.major == MAJOR:
            metadata.version.minor = frame.api.version.minor
        metadata.traits = 0
        return NULL
    if (frame.struct_size < sizeof(CallFrame) or frame.arguments.struct_size < sizeof(Operands)
            or frame.api.version.major != MAJOR):
        return failed(frame, b"hocket.jax does not know this version of XLA's FFI: use an older jaxlib or a newer hocket")
    return perform(frame)


def capsule():
    """The handler, as jax.ffi.register_ffi_target takes it."""
    return PyCapsule_New(<void*>handle, NULL, NULL)
