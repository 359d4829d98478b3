"""send and recv of users: messages matched by tag, not by their place in a schedule."""

from hocket.collectives.plan cimport Instr
from hocket.collectives.run cimport Core, Run, Stash, State

cdef int matched_recv(Core* e, Run* r, Instr* x, State* s) noexcept nogil
cdef void stash_free(Stash* first) noexcept nogil
