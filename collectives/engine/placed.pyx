"""Where a call's arrays lie, if not in host memory: what the engine asks for.  gpu/stream_ops.pyx knows GPUs."""

from hocket.collectives.plans.plan cimport SCRATCH
from hocket.collectives.engine.run cimport Run


cdef class Placed:
    """One call's: the device, the stream that it is ordered in, and the kernels that it launches."""

    cdef char* memory(self, size_t nbytes) except NULL:
        """Scratch of at least so many bytes."""
        raise NotImplementedError

    cdef bint follow(self, uintptr_t stream) except -1:
        """Order the next call in this stream; False if it cannot be issued there."""
        raise NotImplementedError

    cdef int place(self, Run* r, size_t scratch) except -1:
        r.device, r.call.stream, r.meeting = self.device, <void*>self.stream, self.meeting
        r.kernels = self.kernels
        r.base[SCRATCH] = self.memory(scratch) if scratch else NULL
        return 0
