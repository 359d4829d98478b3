"""Moving a run forward; run.pxd says what a run is."""

from libc.stdint cimport uint32_t, uint64_t

from hocket.collectives.plans.plan cimport Plan
from hocket.collectives.engine.run cimport Core, Run, hk_ladder, hk_load32, hk_store32, hk_wait, pollfd

cdef enum:
    CHECK_NS = 50000000     # how often a long wait looks at signals, deadlines and its owner
    MAX_FDS = 64            # that a wait polls on

cdef extern from "stdint.h":
    const size_t FOLLOWED "SIZE_MAX"    # as the bytes that came to a run: it fails only because another one has failed

cdef struct Elsewhere:              # what is queued in this process: waiting/progress.pyx fills it in, and knows more
    uint32_t* engines               # how many engines have queued runs
    int (*advance)(bint caller) noexcept nogil      # try those once that nobody else drives
    void (*waiting)(int change) noexcept nogil      # begin (+1) or end (-1) such tries: hocket's own thread stands back
    void (*hold)(Core*, Run*) noexcept nogil        # a blocking call holds lower lanes from now on while it moves
    void (*let_go)(Run*) noexcept nogil             # ... and no longer
    uint64_t (*wait_step)(hk_wait*, hk_ladder*, Core* mine, pollfd* fds, int nfds) noexcept nogil

cdef Elsewhere elsewhere
cdef uint32_t begun                 # calls and waits for works, in this process; nearly, as no thread waits to count

cdef inline void count_one() noexcept nogil:
    hk_store32(&begun, hk_load32(&begun) + 1)

cdef int place_residuals(Run* r, tuple addresses) except -1
cdef void run_free(Run* r) noexcept
cdef int advance(Core* e, Run* r) noexcept nogil
cdef int drive(Core* e, Run* r, int polls) noexcept nogil
cdef int failed_before(Core* e, Run* r) noexcept nogil
cdef int has_failed(Core* e, Run* r, int rc) noexcept nogil
cdef int collect(Core* e, Run* r, pollfd* fds, int room) noexcept nogil
cdef void tell_waits(Core* e, Run* r, uint64_t since) noexcept nogil
cdef int overdue(Run* r, uint64_t waited) noexcept nogil
cdef int slow_check(Core* e, uint64_t waited) noexcept nogil
