"""The two functions that LightGBM calls for its collectives: allgather, and reduce-scatter by a function of its own.

An error must leave them as LightGBM's own network errors do, as a C++ std::runtime_error.  So each is a function in C
that holds nothing of Python's: it asks `_gather` or `_scatter`, which take the GIL, catch everything, and have given the
GIL back when it throws.  (The compilers for Linux give C functions the tables that unwinding needs.)
"""

from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBUF_WRITE, PyBuffer_Release, PyObject_GetBuffer
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int32_t, uintptr_t
from libc.string cimport memcpy

import threading

from hocket.errors import ArgumentError

# LightGBM's include/LightGBM/meta.h
ctypedef void (*reducer_t)(const char* input, char* output, int type_size, int32_t nbytes) noexcept nogil
ctypedef void (*throw_t)(const char* what) noexcept nogil

cdef throw_t throw = NULL
current = threading.local()
"""`network`: the one of this thread, as in LightGBM."""


def addresses(throw_runtime_error):
    """The addresses of (reduce_scatter, allgather), which end a call that fails by this function, given as an address.

    `throw_runtime_error`: that of std::__throw_runtime_error(const char*), in the C++ library that LightGBM uses.
    """
    global throw
    throw = <throw_t><uintptr_t>throw_runtime_error
    return <uintptr_t>&reduce_scatter, <uintptr_t>&allgather


cdef void reduce_scatter(
    char* input, int32_t input_size, int type_size, const int32_t* starts, const int32_t* lengths, int n, char* output,
    int32_t output_size, const reducer_t* reducer
) noexcept nogil:
    cdef const char* wrong = _scatter(input, input_size, type_size, lengths, n, output, reducer[0])
    if wrong != NULL:
        throw(wrong)


cdef void allgather(
    char* input, int32_t input_size, const int32_t* starts, const int32_t* lengths, int n, char* output,
    int32_t output_size
) noexcept nogil:
    cdef const char* wrong = _gather(input, input_size, lengths, n, output, output_size)
    if wrong != NULL:
        throw(wrong)


cdef const char* _gather(
    char* input, int32_t input_size, const int32_t* lengths, int n, char* output, int32_t output_size
) noexcept with gil:
    """Blocks lie one after the other.  `input` may be the beginning of `output`, so it is copied."""
    try:
        mine = PyMemoryView_FromMemory(input, input_size, PyBUF_READ).tobytes()
        out = PyMemoryView_FromMemory(output, output_size, PyBUF_WRITE)
        _network().allgather(mine, _counts(lengths, n), out)
        return NULL
    except BaseException as error:
        return _failed(error)


cdef const char* _scatter(
    char* input, int32_t input_size, int type_size, const int32_t* lengths, int n, char* output, reducer_t reducer
) noexcept with gil:
    cdef Py_buffer room
    cdef char* blocks
    cdef int32_t length
    cdef Py_ssize_t step, into, of
    try:
        network = _network()
        length = lengths[<int>network.rank]
        mine = PyMemoryView_FromMemory(input, input_size, PyBUF_READ)
        received = network.exchange(mine, _counts(lengths, n))
        PyObject_GetBuffer(received, &room, PyBUF_SIMPLE)
        blocks, step = <char*>room.buf, room.len // n
        PyBuffer_Release(&room)     # `received` keeps it
        if length:
            for into, of in network.order:
                reducer(blocks + of * step, blocks + into * step, type_size, length)
            memcpy(output, blocks, length)
        return NULL
    except BaseException as error:
        return _failed(error)


cdef list _counts(const int32_t* lengths, int n):
    return [lengths[i] for i in range(n)]


cdef object _network():
    network = getattr(current, "network", None)
    if network is None:
        raise ArgumentError(
            "this thread has no network of hocket's: call hocket.lightgbm.setup in the thread that trains"
        )
    return network


cdef const char* _failed(error) noexcept:
    """The text of LightGBM's error; the bytes are the network's, which outlives the call."""
    network = getattr(current, "network", None)
    if network is None:
        return b"hocket.lightgbm: this thread has no network"
    text = network.failed(error)
    return <const char*>text
