"""Messages by tag: what arrives before its recv is set aside, in the order of arrival, until the recv comes."""

from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from hocket.collectives.moves cimport recv
from hocket.collectives.plan cimport Instr
from hocket.collectives.run cimport (BLOCKED, DONE, MOVED, Core, Run, Stash, State, not_ours, piece_at,
                                     piece_length, step_on)
from hocket.transports.channel cimport HK_AGAIN, HK_FAULT, hk_channel, hk_view

cdef enum: TAG_MASK = 0xffffffff    # above it, the dtype: checked, not matched; see messages.py

cdef int matched_recv(Core* e, Run* r, Instr* x, State* s) noexcept nogil:
    """From its peer; of several, from the first whose message is there.  That one is then the only peer of `x`."""
    cdef int i, rc, moved = BLOCKED
    for i in range(x.npeers):
        x.peers[0], x.peers[i] = x.peers[i], x.peers[0]
        rc = recv_from(e, r, x, s)
        if rc < 0:
            return rc
        moved |= rc
        if rc == DONE or e.rx_owner[x.peers[0]] == r:
            x.npeers = 1
            return rc
    return moved


cdef int recv_from(Core* e, Run* r, Instr* x, State* s) noexcept nogil:
    """Like `recv`, but a message with another tag is set aside until its own recv comes.

    Of several recvs that wait, only the first in a pass looks at the channel: what arrives between two looks
    would otherwise go to the later one, out of order.
    """
    cdef int peer = x.peers[0], rc
    cdef hk_channel* ch = e.rx[peer]
    cdef Stash** link = &e.stash[peer]
    cdef Stash* m
    cdef hk_view v
    if e.rx_owner[peer] == r:
        return finish_matched(e, r, x, s, peer)
    while link[0] != NULL:                                  # the oldest that fits
        m = link[0]
        if (m.tag & TAG_MASK) == (r.tag & TAG_MASK):
            if m.done < m.length:
                break                                       # still on its way in
            if m.tag != r.tag or m.length != s.total:
                return not_ours(r, peer, m.tag, m.length)
            unpack(r, x, s, m.data)
            link[0] = m.next
            free(m.data)
            free(m)
            return DONE
        link = &m.next
    if e.rx_mark[peer] == e.pass_number:
        return BLOCKED                                      # an earlier recv has looked in this pass and waits: it goes first
    e.rx_mark[peer] = e.pass_number
    if e.rx_owner[peer] != NULL:
        return BLOCKED                                      # another recv is in the middle of a message
    rc = drain_stash(e, r, peer, ch)
    if rc != DONE:
        return rc
    if link[0] != NULL:
        return MOVED                                        # it is complete now: found on the next pass
    rc = ch.ops.peek(ch, &v, 0)
    if rc < 0:
        r.culprit = peer
        return BLOCKED if rc == HK_AGAIN else rc
    if (v.tag & TAG_MASK) != (r.tag & TAG_MASK):
        r.culprit = peer
        return set_aside(e, peer, &v)
    if v.tag != r.tag or v.length != s.total:
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
        n = piece_length(r, &x.dst[s.piece], s.segment) - s.at
        memcpy(piece_at(r, &x.dst[s.piece], s), data + s.done, n)
        step_on(r, x.dst, x.npieces, s, n)


cdef int set_aside(Core* e, int peer, hk_view* v) noexcept nogil:
    cdef Stash** link = &e.stash[peer]
    cdef Stash* m = <Stash*>calloc(1, sizeof(Stash))
    while link[0] != NULL:
        link = &link[0].next
    if m != NULL:
        m.tag, m.length = v.tag, v.length
        m.data = <char*>malloc(max(<size_t>1, <size_t>v.length))
    if m == NULL or m.data == NULL:
        free(m)
        return HK_FAULT
    link[0] = m
    if m.length == 0:
        e.rx[peer].ops.consume(e.rx[peer], 0, 1)
    return MOVED


cdef int drain_stash(Core* e, Run* r, int peer, hk_channel* ch) noexcept nogil:
    """Take in the rest of the message that is being set aside.  DONE when there is none."""
    cdef Stash* m = e.stash[peer]
    cdef hk_view v
    cdef size_t n
    cdef int rc
    while m != NULL and m.done == m.length:
        m = m.next
    if m == NULL:
        return DONE
    while m.done < m.length:
        rc = ch.ops.peek(ch, &v, 1)
        if rc < 0 or v.avail == 0:
            r.culprit = peer
            return BLOCKED if rc == HK_AGAIN or rc == 1 else rc
        n = min(v.avail, m.length - m.done)
        memcpy(m.data + m.done, v.data, n)
        m.done += n
        ch.ops.consume(ch, n, m.done == m.length)
    return DONE


cdef void stash_free(Stash* first) noexcept nogil:
    cdef Stash* next
    while first != NULL:
        next = first.next
        free(first.data)
        free(first)
        first = next
