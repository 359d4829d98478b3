"""A GPU as a queue uses it."""

from libc.stdint cimport uintptr_t

from hocket.collectives.gpu.meeting cimport Meet, Meeting
from hocket.collectives.engine.placed cimport Placed
from hocket.collectives.engine.run cimport DeviceOps
from hocket.system.cuda.nccl cimport hk_nccl, hk_nccl_call
from hocket.system.cuda.driver cimport CUevent, CUfunction, Device, hk_device


cdef struct Gpu:
    DeviceOps base
    hk_device* device
    int most, block                 # blocks of a launch; threads of a block
    CUevent through                 # the last run that used the scratch memory
    Meet* meet                      # of the queue's kernels with those of other ranks; or NULL


cdef struct Launch:                 # of a kernel, with all that it needs
    CUfunction function
    unsigned int blocks, threads
    void** parameters
    Meet* meet                      # it meets the other ranks' kernels; or NULL
    int x                           # of a call that meets: the index of the parameter x; the next is out
    hk_nccl* nccl                   # it is no kernel: this communicator makes this call; or NULL
    hk_nccl_call call
    bint captured                   # into a graph: no order with other calls' streams can be told there
    CUfunction barrier              # ... where kernels meet before and after this one


cdef class StreamOps:
    cdef Gpu gpu
    cdef readonly Device device
    cdef uintptr_t side             # the stream of asynchronous calls
    cdef readonly Meeting meeting
    cdef set loaded                 # kernels of this queue's calls, by name
    cdef list blocks                # of scratch memory ...
    cdef uintptr_t scratch          # ... the largest, and its bytes
    cdef size_t largest
    cdef char* memory(self, size_t nbytes) except NULL


cdef class OnStream(Placed):
    cdef StreamOps at
    cdef Launch launch      # of the kernel that meets, or of NCCL
    cdef object kept        # keeps alive what the launch needs
