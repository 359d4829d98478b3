"""send and recv of users: messages matched by tag, not by their place in a schedule."""

from hocket.collectives.plans.plan cimport Instr
from hocket.collectives.engine.run cimport Aside, Core, Run, State

cdef int matched_recv(Core* e, Run* r, Instr* x, State* s) noexcept nogil
cdef int probe(Core* e, Run* r, Instr* x, State* s) noexcept nogil
cdef void aside_free(Aside* a) noexcept nogil
