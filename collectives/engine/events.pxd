"""Events of a call: it is counted, and recorded.

Calls are always counted: how many, of how many bytes, and how long they took.  Timing every call would slow the short
ones, and long ones stop the clock often.  So the first 32 of a kind are timed, then one in 64 of the small ones, one in
16 of those below 16 MiB, and all above.  A timed one stands for those between.

They are recorded, too (system/record.h), unless HOCKET_RECORDER=0: then `Core.record` is NULL, and that is all that is
looked at.  A call that is not timed reads no clock for it; its record has the last time that was known.  Waits of more
than TOLD_NS are always recorded, with the peers that are waited for.  In a trace all is timed and recorded.
"""

from libc.stdint cimport UINT32_MAX, uint32_t, uint64_t

from hocket.collectives.engine.run cimport TIMED, Core, Run, hk_now
from hocket.collectives.plans.plan cimport RECV, REDUCE, SEND, Instr
from hocket.collectives.recording.recorder cimport (
    HK_NOBODY, HK_SAW_CALL, HK_SAW_CALLED, HK_SAW_DONE, HK_SAW_FAIL, HK_SAW_KERNEL, HK_SAW_MOVED, HK_SAW_NO_CORE,
    HK_SAW_RECV_READY, HK_SAW_SEND_READY, HK_SAW_STEP, hk_clock_now, hk_put, hk_put_call, hk_record)

cdef extern from *:
    """
    #define hk_seldom(x) __builtin_expect(!!(x), 0)
    """
    bint seldom "hk_seldom" (bint) nogil

cdef enum:
    ALL = 32
    OF_SMALL = 64
    OF_LARGE = 16
    HUGE_BYTES = 16777216
    TOLD_NS = 50000             # a wait that lasts so long is recorded


cdef inline uint64_t time_now(Core* e) noexcept nogil:
    return hk_now() if e.trace == NULL else hk_clock_now(&e.trace.clock)


cdef inline hk_record* call_begins(Core* e, Run* r, size_t nbytes, bint small) noexcept nogil:
    """Returns its record, for `call_returns`."""
    cdef uint64_t others = OF_SMALL - 1 if small else OF_LARGE - 1 if nbytes < HUGE_BYTES else 0
    cdef uint64_t calls = r.count.calls + 1
    r.count.calls = calls
    r.count.bytes += nbytes
    r.blocked_at = r.weight = 0
    r.told = False
    if seldom(calls & others == 0 or calls <= ALL or e.trace != NULL):
        r.weight = TIMED | (1 if calls <= ALL else others + 1 if calls & others == 0 else 0)
        r.kernel_ns = r.kernel_bytes = 0
        r.began = time_now(e)
        if e.record != NULL:
            e.record.last = r.began
    return &e.nowhere if e.record == NULL else hk_put_call(e.record, &r.number, nbytes)


cdef inline void call_waits(Core* e, Run* r) noexcept nogil:
    """Nothing moves now."""
    if r.blocked_at == 0:
        r.blocked_at = time_now(e)


cdef inline void call_moves(Core* e, Run* r) noexcept nogil:
    """Something moves again, after `call_waits`."""
    cdef uint64_t now
    if r.blocked_at:
        now = time_now(e)
        r.count.waited += (now - r.blocked_at) * <uint32_t>r.weight
        if r.told:
            hk_put(e.record, now, HK_SAW_MOVED, r.number, r.what, now - r.blocked_at, HK_NOBODY, r.t - 1, HK_NOBODY)
            r.told = False
        r.blocked_at = 0


cdef inline void step_ends(Core* e, Run* r) noexcept nogil:
    if r.kernel_ns:
        hk_put(e.trace, hk_clock_now(&e.trace.clock), HK_SAW_KERNEL, r.number, <uint32_t>min(r.kernel_ns, <uint64_t>UINT32_MAX), r.kernel_bytes,
               HK_NOBODY, r.t - 1, HK_NOBODY)
    r.kernel_ns = r.kernel_bytes = 0


cdef inline void step_opens(Core* e, Run* r) noexcept nogil:
    """In a trace: the step before has ended, with its kernels."""
    step_ends(e, r)
    hk_put(e.trace, hk_clock_now(&e.trace.clock), HK_SAW_STEP, r.number, r.what, 0, HK_NOBODY, r.t, HK_NOBODY)


cdef inline void call_returns(Core* e, Run* r, size_t nbytes, hk_record* begun) noexcept nogil:
    """A blocking call is done, and its result is there.  `begun`: its record, in which its end is told if nothing else is."""
    call_moves(e, r)
    if seldom(r.weight):
        write_end(e, r, nbytes)
    else:
        begun.kind = HK_SAW_CALLED


cdef inline void call_ends(Core* e, Run* r, size_t nbytes) noexcept nogil:
    """A queued one; others may have begun and ended meanwhile."""
    call_moves(e, r)
    write_end(e, r, nbytes)


cdef inline void write_end(Core* e, Run* r, size_t nbytes) noexcept nogil:
    cdef uint64_t now = 0
    if e.trace != NULL:
        step_ends(e, r)
    if r.weight & TIMED:
        now = time_now(e)
        r.count.ns += (now - r.began) * <uint32_t>r.weight
    elif e.record != NULL:
        now = e.record.last
    if e.record != NULL:
        hk_put(e.record, now, HK_SAW_DONE, r.number, r.what, nbytes, HK_NOBODY, HK_NOBODY, HK_NOBODY)


cdef inline void message(Core* e, Run* r, int place, uint32_t kind) noexcept nogil:
    """In a trace: something happened to the messages of an instruction.  `kind`: as of one that comes."""
    cdef int j
    cdef uint64_t ns = hk_clock_now(&e.trace.clock)
    cdef Instr* x = &r.instrs[place]
    if x.kind == SEND or x.kind == RECV or x.kind == REDUCE:
        for j in range(x.npeers):
            hk_put(e.trace, ns, kind - (HK_SAW_RECV_READY - HK_SAW_SEND_READY) * (x.kind == SEND), r.number, r.what,
                   r.states[place].total, <uint32_t>x.peers[j], r.t - 1, place)


cdef inline void was_away(Core* e, Run* r, uint64_t ns) noexcept nogil:
    """In a trace: another process had this rank's core for so long before it saw that its wait was over.

    Before that it did not matter: there was nothing to do.
    """
    if ns:
        hk_put(e.trace, hk_clock_now(&e.trace.clock), HK_SAW_NO_CORE, r.number, r.what, ns, HK_NOBODY, r.t - 1, HK_NOBODY)


cdef inline void call_fails(Core* e, Run* r, int code) noexcept nogil:
    if e.record != NULL:
        hk_put(e.record, hk_now(), HK_SAW_FAIL, r.number, r.what, <uint64_t>-code, <uint32_t>r.culprit, HK_NOBODY,
               HK_NOBODY)
