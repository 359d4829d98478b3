"""XLA's interface for calls of foreign functions (xla/ffi/api/c_api.h, version 0.x): the parts that hocket uses.

Declared here, so that hocket builds without jaxlib.  XLA only ever appends fields, and each structure says its size, so
these layouts hold for every version 0.x whose structures are at least as long; handler.pyx checks that.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint32_t

ctypedef struct Extension:
    size_t struct_size
    int32_t kind
    Extension* next

ctypedef struct Version:
    size_t struct_size
    Extension* extensions
    int major
    int minor

ctypedef struct Metadata:
    size_t struct_size
    Version version
    uint32_t traits

ctypedef struct MetadataExtension:
    Extension base
    Metadata* metadata

ctypedef struct NewError:
    size_t struct_size
    Extension* extensions
    const char* message
    int32_t code

ctypedef void* (*MakeError)(NewError*) noexcept nogil

ctypedef struct Api:
    size_t struct_size
    Extension* extensions
    Version version
    void* internal
    MakeError make_error

ctypedef struct ArrayBuffer:
    size_t struct_size
    Extension* extensions
    int32_t dtype
    void* data
    int64_t ndim
    int64_t* shape

ctypedef struct Operands:           # the arguments, and the results
    size_t struct_size
    Extension* extensions
    int64_t size
    int32_t* kinds
    ArrayBuffer** buffers

ctypedef struct Span:
    const char* data
    size_t length

ctypedef struct Attributes:
    size_t struct_size
    Extension* extensions
    int64_t size
    int32_t* kinds
    Span** names
    void** values

ctypedef struct CallFrame:
    size_t struct_size
    Extension* extensions
    const Api* api
    void* context
    int32_t stage
    Operands arguments
    Operands results
    Attributes attributes

cdef enum:
    MAJOR = 0
    METADATA = 1                    # the kind of the extension that asks for the handler's version
    BUFFER = 1                      # of an operand
    STRING = 4                      # of an attribute
    TOKEN = 17                      # the type of what orders calls, and has no memory
    INTERNAL = 13                   # an error's code
