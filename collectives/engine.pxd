"""The engine: one ordered queue of plans, run over the channels of one lane.

The only place where schedules, channels and kernels meet.  Everything below `Engine` is C structs and nogil.
"""

from libc.stdint cimport uint32_t, uint64_t, uintptr_t

from hocket.collectives.plan cimport Plan
from hocket.collectives.run cimport Core, Run, pollfd

cdef int run_init(Run* r, Plan plan) except -1
cdef void run_free(Run* r) noexcept
cdef int advance(Core* e, Run* r) noexcept nogil
cdef int drive(Core* e, Run* r, int polls) noexcept nogil
cdef int failed_before(Core* e, Run* r) noexcept nogil
cdef int has_failed(Core* e, Run* r, int rc) noexcept nogil
cdef int collect(Core* e, Run* r, pollfd* fds, int room) noexcept nogil
cdef int slow_check(Core* e, uint64_t waited) noexcept nogil


cdef class Engine:
    cdef Core core
    cdef uint32_t seq
    cdef readonly bint busy     # a blocking call is running, or has failed
    cdef uint32_t opening       # calls that wait for their channels: begun, but not numbered
    cdef int polls_with_gil
    cdef Run run                # of blocking calls
    cdef char* scratch
    cdef size_t scratch_bytes
    cdef public int culprit
    cdef readonly Plan plan     # of the latest call
    cdef object tag             # ... if it is a message
    cdef list recent            # plans of the latest RECENT calls, by number
    cdef readonly uint32_t foreign
    cdef readonly size_t came
    cdef public object owner    # told of long waits: owner.on_wait(engine, seconds)
    cdef public object error
    cdef list keep
    cdef readonly dict plans

    cdef bint claim(self) noexcept
    cdef void release(self) noexcept
    cdef int point(self, Run* r, Plan plan) except -1
    cdef int perform(self, Run* r, Plan plan) except -1000
    cdef int prepare(self, Run* r, Plan plan, uintptr_t src, uintptr_t dst, int op, object user) except -1
