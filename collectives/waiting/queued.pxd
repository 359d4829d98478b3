"""One queued run, as `Work` holds it."""

from libc.stdint cimport uint32_t, uint64_t

from hocket.collectives.engine.engine cimport Engine
from hocket.collectives.plans.plan cimport Plan
from hocket.collectives.waiting.progress cimport Node
from hocket.kernels.cpu.reduce cimport reduce_fn


cdef class Queued:
    cdef Node node
    cdef readonly Engine engine
    cdef readonly Plan plan
    cdef readonly uint32_t seq          # its number among the engine's calls
    cdef tuple made                     # where the user made it: (code, line)
    cdef public bint broken_off         # SystemExit ended the wait for it, perhaps before its own error was raised
    cdef bint interrupted               # by a signal, or what `on_wait` raised: kept in engine.error
    cdef object keep, user
    cdef char* own_scratch

    cdef int ready(self, Engine engine, Plan plan, char* src, char* dst, uint64_t limit, object keep,
                   bint in_host_memory=*) except -1
    cdef int enqueue(self, bint numbered) except -1
    cdef int check_thread(self) except -1


cdef int reap_ended() except -1     # let go of the works that have ended, if some have
cdef Queued queue_run(Engine engine, Plan plan, char* src, char* dst, reduce_fn reduce, uint64_t limit, object keep)
