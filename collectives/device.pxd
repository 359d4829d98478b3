"""A GPU as a queue uses it."""

from libc.stdint cimport uint32_t, uintptr_t

from hocket.collectives.placed cimport Placed
from hocket.collectives.run cimport Accelerator, Run
from hocket.transports.cuda cimport CUevent, CUfunction, Device, hk_device


cdef struct Gpu:
    Accelerator base
    hk_device* device
    int most, block                 # blocks of a launch; threads of a block
    CUevent through                 # the last run that used the scratch memory
    uint32_t refusals               # of the driver, when the run began


cdef struct Launch:                 # of a kernel, with all that it needs
    CUfunction function
    unsigned int blocks, threads
    void** parameters


cdef class Accelerated:
    cdef Gpu gpu
    cdef readonly Device device
    cdef uintptr_t side             # the stream of asynchronous calls
    cdef list blocks                # of scratch memory ...
    cdef uintptr_t scratch          # ... the largest, and its bytes
    cdef size_t largest
    cdef char* memory(self, size_t nbytes) except NULL
    cdef object scaling(self, Launch* launch, dtype, uintptr_t out, uintptr_t source, size_t count, double factor)


cdef class OnStream(Placed):
    cdef Accelerated at
    cdef Launch launch
    cdef object kept        # what its parameters lie in
