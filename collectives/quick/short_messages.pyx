"""The short way for messages of a kind that was sent before, of NumPy arrays or torch tensors.

A direct-mapped table remembers the plans of the general way (communicator/messenger.py) by the ranks at the ends, the dtype
and the shapes; tags are no part of a plan.  Anything unusual is a MISS, and the general way decides.
"""

import weakref

from cpython.long cimport PyLong_AsLongLongAndOverflow
from libc.stdint cimport int64_t, uint64_t, uintptr_t

from hocket.collectives.engine.run cimport run_init
from hocket.collectives.engine.engine cimport Engine
from hocket.collectives.engine.run cimport ASKS_ANY_TAG, DONE, Run, hk_load32, match, may_drive, nanoseconds
from hocket.collectives.quick.shortcut cimport MAX_DIMS, MISS, Seen, fits, groups_open, keep, learn, see
from hocket.collectives.plans.plan cimport IN, OUT, Plan
from hocket.collectives.waiting.queued cimport Queued, queue_run, reap_ended

cdef enum:
    ENTRIES = 64
    ANY = -1                    # as communicator/messenger.py has it
    NOBODY = -2                 # no end there: the message only goes out, or only comes in
    ODD = -3                    # not an int that C holds
    TAG_BITS = 31               # of users' tags


cdef class Entry:
    pass


cdef class ShortMessages:
    """The table of a communicator, and the way through it."""

    def __init__(self, Engine engine, double timeout, messenger):
        self.engine = engine
        self.messenger = weakref.ref(messenger)     # weak, as it owns us: a dropped communicator is freed at once
        self.entries = [None] * ENTRIES
        self.limit = nanoseconds(timeout)

    def set_timeout(self, double timeout):
        self.limit = nanoseconds(timeout)

    cdef object take(self, int ends, object x, object dest, object out, object source, object tag, bint later):
        """`out`, or the Work if `later`, or MISS.  `ends`: SENDS x, RECEIVES `out`, or both."""
        cdef Seen a, b
        cdef Entry e
        cdef Engine engine = self.engine
        cdef Run* r
        cdef int rc
        cdef bint sends = ends & SENDS, receives = ends & RECEIVES
        cdef int64_t to = whole(dest) if sends else NOBODY
        cdef int64_t come = NOBODY if not receives else ANY if source is None else whole(source)
        cdef uint64_t label = whole(tag) if tag is not None or sends else ASKS_ANY_TAG
        if (label >> TAG_BITS and label != ASKS_ANY_TAG) or (sends and not see(x, &a)) or (receives and not see(out, &b)):
            return MISS
        entry = self.entries[slot(to, come, &a if sends else &b)]
        if entry is None:
            return MISS
        e = <Entry>entry
        if e.dest != to or e.source != come or groups_open():
            return MISS
        if sends and (e.dtype_id != a.dtype or not fits(&e.x, &a)):
            return MISS
        if sends and receives and a.data < b.data + b.nbytes and b.data < a.data + a.nbytes:
            return MISS
        if receives and (e.dtype_id != b.dtype or not fits(&e.out, &b) or not b.writable):
            return MISS
        if engine.core.failed or hk_load32(&engine.core.aborted):
            return MISS                             # the general way refuses, and keeps nothing
        if later or not engine.claim():         # others are queued, or another thread is at it: this one queues too
            if not may_drive(&engine.core, True):
                return MISS
            work = self.queue(e, a.data if sends else NULL, b.data if receives else NULL, e.label | label, x, out)
            return work if later else work.result()
        r = &engine.run
        try:
            run_init(r, e.plan)
        except BaseException:
            engine.release()
            raise
        r.base[IN], r.base[OUT] = a.data if sends else NULL, b.data if receives else NULL
        r.reduce = NULL
        engine.label = e.label | label
        match(r, engine.label)
        r.limit = self.limit
        rc = engine.perform(r, e.plan)
        if rc != DONE:
            engine.hold((x, out))
            self.messenger().reporter.fail(engine, rc, engine.culprit, self.limit * 1e-9)
        reap_ended()
        return out

    cdef object queue(self, Entry e, char* src, char* dst, uint64_t label, object x, object out):
        cdef Queued queued = queue_run(self.engine, e.plan, src, dst, NULL, self.limit, (x, out))
        match(&queued.node.run, label)
        self.engine.label = label
        queued.enqueue(False)
        return self.messenger().work(queued, out)

    def remember(self, x, dest, out, source, Plan plan, uint64_t label):
        """Let the next such message take the short way, if it may.  `label`: of its messages, but for the tag."""
        cdef Seen a, b
        cdef Entry e
        model = out if x is None else x
        if not learn(model) or (x is not None and not see(x, &a)) or (out is not None and not see(out, &b)):
            return
        if (x is not None and a.ndim > MAX_DIMS) or (out is not None and b.ndim > MAX_DIMS):
            return
        e = Entry.__new__(Entry)
        e.plan, e.dtype, e.label = plan, model.dtype, label
        e.dest, e.source = NOBODY if dest is None else dest, NOBODY if source is None else source
        e.dtype_id = b.dtype if x is None else a.dtype
        if x is not None:
            keep(&e.x, &a)
        if out is not None:
            keep(&e.out, &b)
        self.entries[slot(e.dest, e.source, &b if x is None else &a)] = e


cdef inline int64_t whole(object value) except? ODD:
    """An int as C's, which is not negative."""
    cdef int beyond = 0
    cdef int64_t n
    if type(value) is not int:
        return ODD
    n = PyLong_AsLongLongAndOverflow(value, &beyond)
    return ODD if beyond or n < 0 else n


cdef inline int slot(int64_t dest, int64_t source, Seen* s) noexcept:
    cdef uintptr_t h = (<uintptr_t>(dest + 3) * 31 + <uintptr_t>(source + 3)) * 31 + (s.dtype >> 4)
    h = h * 31 + s.count
    return <int>((h ^ (h >> 7)) % ENTRIES)
