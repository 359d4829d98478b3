"""Messages by tag: what arrives before its recv is set aside, in the order of arrival, until the recv comes.

The law (MPI's): of the messages from one peer with one tag, the earlier sent goes to the earlier posted recv.  It holds
because

1. recvs look in the order in which they were posted (drive.pyx, progress.pyx), all of them once in a pass;
2. the messages set aside from a peer are older than what its channel holds, and are looked at first;
3. a recv whose message is set aside takes it in the look that finds it complete, or completes it;
4. in a pass only one waiting recv looks at a channel: what arrives between two looks of one pass would go to the later.

tests/collectives/engine/test_matching.py walks through all small interleavings.
"""

from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from hocket.collectives.engine.instructions cimport recv
from hocket.collectives.plans.plan cimport Instr
from hocket.collectives.engine.run cimport (BLOCKED, DONE, MOVED, TAG_SLOTS, Aside, Core, Run, Stash, State, not_ours, piece_at,
                                     piece_length, step_on)
from hocket.transports.channel cimport HK_AGAIN, HK_FAULT, HK_LOST, hk_channel, hk_receive_copied, hk_view

cdef enum: TAG_MASK = 0xffffffff    # above it, the dtype: checked, not matched; see communicator/messages.py

cdef int matched_recv(Core* e, Run* r, Instr* x, State* s) noexcept nogil:
    """From its peer; of several, from the first whose message is there.  That one is then the only peer of `x`."""
    cdef int i, rc, moved = BLOCKED
    for i in range(x.npeers):
        x.peers[0], x.peers[i] = x.peers[i], x.peers[0]
        rc = recv_from(e, r, x, s)
        if rc == HK_LOST and x.npeers > 1 and e.rx_owner[x.peers[0]] != r:      # not in the middle of our message
            x.npeers -= 1
            x.peers[0], x.peers[x.npeers] = x.peers[x.npeers], x.peers[0]
            return MOVED                    # it has dropped this communicator; if it died, the coordinator says so
        if rc < 0:
            return rc
        moved |= rc
        if rc == DONE or e.rx_owner[x.peers[0]] == r:
            x.npeers = 1
            return rc
    return moved


cdef int recv_from(Core* e, Run* r, Instr* x, State* s) noexcept nogil:
    """Like `recv`, but a message with another tag is set aside until its own recv comes."""
    cdef int peer = x.peers[0], rc
    cdef hk_channel* ch = e.rx[peer]
    cdef Stash* m
    cdef hk_view v
    if e.rx_owner[peer] == r:
        return finish_matched(e, r, x, s, peer)
    m = oldest(e.aside[peer], r.call.tag)
    if m == NULL or m.done < m.length:
        if e.rx_mark[peer] == e.pass_number:
            return BLOCKED                                  # an earlier recv has looked in this pass and waits: it goes first
        e.rx_mark[peer] = e.pass_number
        if e.rx_owner[peer] != NULL:
            return BLOCKED                                  # another recv is in the middle of a message
        rc = take_in(e, r, peer, ch)
        if rc != DONE:
            return rc
    if m != NULL:
        if m.tag != r.call.tag or m.length != s.total:
            return not_ours(r, peer, m.tag, m.length)
        unpack(r, x, s, m.data)
        drop_oldest(e.aside[peer], m)
        return DONE
    rc = ch.ops.peek(ch, &r.call, &v, 0)
    if rc < 0:
        r.culprit = peer
        return BLOCKED if rc == HK_AGAIN else rc
    if (v.tag & TAG_MASK) != (r.call.tag & TAG_MASK):
        r.culprit = peer
        return set_aside(e, r, peer, &v)
    if v.tag != r.call.tag or v.length != s.total:
        return not_ours(r, peer, v.tag, v.length)
    e.rx_owner[peer] = r
    e.rx_mark[peer] = e.pass_number - 1                     # it has its message: the next recv may look
    return finish_matched(e, r, x, s, peer)


cdef int finish_matched(Core* e, Run* r, Instr* x, State* s, int peer) noexcept nogil:
    cdef int rc = recv(e, r, x, s)
    if rc == DONE:
        e.rx_owner[peer] = NULL
    return rc


cdef void unpack(Run* r, Instr* x, State* s, const char* data) noexcept nogil:
    cdef size_t n
    while s.done < s.total:
        n = piece_length(x, &x.dst[s.piece], s.segment) - s.at
        memcpy(piece_at(r, x, &x.dst[s.piece], s), data + s.done, n)
        step_on(x, x.dst, s, n)


cdef int probe(Core* e, Run* r, Instr* x, State* s) noexcept nogil:
    """Look once: is the message there that a recv posted now would take?  Its peer and label, and its bytes, go to where
    recvs put theirs, as two uint64 and one; else nothing does.  Never waits, and takes nothing but what it sets aside.
    """
    cdef uint64_t* said = <uint64_t*>piece_at(r, x, x.dst, s)
    cdef int i, rc
    for i in range(x.npeers):
        rc = probe_one(e, r, x.peers[i], &said[1])
        if rc == DONE:
            said[0] = x.peers[i]
            return DONE
        if rc == HK_LOST:
            continue                        # recv_from says so to whom it concerns
        if rc < 0:
            return rc
    return DONE


cdef int probe_one(Core* e, Run* r, int peer, uint64_t* said) noexcept nogil:
    """DONE: it is there; BLOCKED: it is not, or an earlier recv of any tag goes first."""
    cdef hk_channel* ch = e.rx[peer]
    cdef Stash* m
    cdef hk_view v
    cdef int rc
    while True:
        m = oldest(e.aside[peer], r.call.tag)
        if m != NULL:
            said[0], said[1] = m.tag, m.length
            return DONE
        if e.rx_mark[peer] == e.pass_number or e.rx_owner[peer] != NULL:
            return BLOCKED
        rc = take_in(e, r, peer, ch)
        if rc != DONE:
            return rc if rc < 0 else BLOCKED
        rc = ch.ops.peek(ch, &r.call, &v, 0)
        if rc < 0:
            r.culprit = peer
            return BLOCKED if rc == HK_AGAIN else rc
        if (v.tag & TAG_MASK) == (r.call.tag & TAG_MASK):
            said[0], said[1] = v.tag, v.length
            return DONE
        rc = set_aside(e, r, peer, &v)
        if rc < 0:
            return rc


# ------------------------------------------------------------------------------------------ what is set aside

cdef inline Stash* oldest(Aside* a, uint64_t tag) noexcept nogil:
    """The first message with this tag."""
    cdef Stash* m
    if a == NULL:
        return NULL
    m = a.first[tag % TAG_SLOTS]
    while m != NULL and (m.tag & TAG_MASK) != (tag & TAG_MASK):
        m = m.next
    return m


cdef void drop_oldest(Aside* a, Stash* gone) noexcept nogil:
    cdef size_t slot = gone.tag % TAG_SLOTS
    cdef Stash* before = NULL
    cdef Stash* m = a.first[slot]
    while m != gone:
        before, m = m, m.next
    if before == NULL:
        a.first[slot] = gone.next
    else:
        before.next = gone.next
    if a.last[slot] == gone:
        a.last[slot] = before
    free(gone.data)
    free(gone)


cdef int set_aside(Core* e, Run* r, int peer, hk_view* v) noexcept nogil:
    """Begin to take in the message at the head of the channel."""
    cdef Aside* a = e.aside[peer]
    cdef size_t slot = v.tag % TAG_SLOTS
    cdef Stash* m
    cdef int rc
    if a == NULL:
        a = e.aside[peer] = <Aside*>calloc(1, sizeof(Aside))
        if a == NULL:
            return HK_FAULT
    m = <Stash*>calloc(1, sizeof(Stash))
    if m != NULL:
        m.tag, m.length = v.tag, v.length
        m.data = <char*>malloc(max(<size_t>1, <size_t>v.length))
    if m == NULL or m.data == NULL:
        free(m)
        return HK_FAULT
    if a.last[slot] == NULL:
        a.first[slot] = m
    else:
        a.last[slot].next = m
    a.last[slot] = m
    if m.length:
        a.coming = m
        return MOVED
    rc = e.rx[peer].ops.consume(e.rx[peer], &r.call, 0, 1)
    return rc if rc < 0 else MOVED


cdef int take_in(Core* e, Run* r, int peer, hk_channel* ch) noexcept nogil:
    """Take in the rest of the message that is being set aside.  DONE when there is none.

    Not by the channel's `recv`, which may go on by itself until `forget` ends it: this memory goes with the engine.
    """
    cdef Stash* m = e.aside[peer].coming if e.aside[peer] != NULL else NULL
    cdef long n
    cdef int moved = BLOCKED
    if m == NULL:
        return DONE
    while m.done < m.length:
        n = hk_receive_copied(ch, &r.call, m.data + m.done, m.length - m.done, m.length - m.done)
        if n < 0:
            r.culprit = peer
            return moved if n == HK_AGAIN else <int>n
        m.done += n
        moved = MOVED
    e.aside[peer].coming = NULL
    return DONE


cdef void aside_free(Aside* a) noexcept nogil:
    cdef size_t slot
    if a == NULL:
        return
    for slot in range(TAG_SLOTS):
        while a.first[slot] != NULL:
            drop_oldest(a, a.first[slot])
    free(a)
