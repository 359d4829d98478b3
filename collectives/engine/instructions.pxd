"""The work of an instruction: each takes one message, or one reduction, as far as it goes, and never blocks."""

from hocket.collectives.plans.plan cimport Instr
from hocket.collectives.engine.run cimport Core, Run, State

cdef enum:
    MAX_WAYS = 256              # operands of one k-way reduction: those of 255 peers (plans/lower.py) and our own

# BLOCKED: not now; MOVED: a part; DONE: all of it; or an error.
cdef int send(Core* e, Run* r, Instr* x, State* s) noexcept nogil
cdef int recv(Core* e, Run* r, Instr* x, State* s, int peer) noexcept nogil
cdef int reduce(Core* e, Run* r, Instr* x, State* s) noexcept nogil

cdef int changes(Core* e, Run* r, Instr* x, State* s) noexcept nogil    # before it writes where messages were sent from
cdef int let_go(Core* e, Run* r, const char* at, size_t nbytes) noexcept nogil    # 1, 0: not yet, or an error

cdef int call(Core* e, Run* r, Instr* x, State* s) noexcept nogil
cdef int copy(Core* e, Run* r, Instr* x, State* s) noexcept nogil
cdef int copy_own(Core* e, Run* r, Instr* x, State* s) noexcept nogil
cdef int apply(Core* e, Run* r, Instr* x, State* s) noexcept nogil

cdef int device_failed(Core* e, Run* r) noexcept nogil      # RAISED, with the device's words
