"""The engine: the only place where schedules, channels and kernels meet."""

from libc.stdint cimport uint32_t, uint64_t, uintptr_t

from cpython.ref cimport PyObject

from hocket.collectives.plans.plan cimport Plan
from hocket.collectives.engine.run cimport Core, Run
from hocket.collectives.recording.recorder cimport Writer
from hocket.kernels.cpu.reduce cimport reduce_fn

cdef enum: RECENT = 16  # calls that are remembered for when ranks disagree; ranks are hardly ever further apart


cdef extern from "stdint.h":
    const uint64_t NO_LABEL "UINT64_MAX"

cdef object no_scratch(Plan plan)


cdef class Engine:
    cdef Engine counter     # the engine that numbers our calls too; None: this one does
    cdef Core core
    cdef Writer writer          # of core.record
    cdef uint32_t seq
    cdef readonly bint in_call  # a blocking call is running, or has failed ...
    cdef readonly uint64_t caller   # ... in this thread
    cdef uint32_t opening       # calls that wait for their channels: begun, but not numbered
    cdef int polls_with_gil
    cdef Run run                # of blocking calls
    cdef char* scratch
    cdef size_t scratch_bytes
    cdef public int culprit
    cdef Plan latest            # the plan of the latest call ...
    cdef PyObject* repeated     # ... if it was made by `repeat`: NULL, it was not
    cdef uint64_t label         # ... if it is a message (communicator/messenger.py), else NO_LABEL
    cdef list recent            # plans of the latest RECENT calls, by number ...
    cdef PyObject* again[RECENT]    # ... of those that were made by `repeat`
    cdef readonly uint32_t foreign
    cdef readonly size_t came
    cdef object owner_ref
    cdef public object error
    cdef list keep
    cdef readonly dict plans
    cdef public double room     # cores of this host for each of its ranks

    cdef void number(self, Run* r, Plan plan) noexcept
    cdef bint claim(self) noexcept
    cdef void release(self) noexcept
    cdef int make_room(self, Plan plan) except -1
    cdef int perform(self, Run* r, Plan plan) except -1000
    cdef int repeat(self, Plan plan, char* src, char* dst, reduce_fn reduce, uint64_t limit) noexcept nogil
    cdef int prepare(self, Run* r, Plan plan, uintptr_t src, uintptr_t dst, int op, object user,
                     tuple residuals) except -1
