"""Messages by tag: what arrives before its recv is set aside, in the order of arrival, until the recv comes.

The law (MPI's): of the messages from one peer that a recv may take, it takes the earliest sent that no earlier posted
recv takes.  A recv may ask for any tag, and for any peer; between peers there is no order, and they take turns.  It holds
because

1. recvs look in the order in which they were posted (drive.pyx, progress.pyx), all of them once in a pass;
2. the messages set aside from a peer are older than what its channel holds, and are looked at first;
3. a recv whose message is set aside takes it in the look that finds it complete, or completes it;
4. in a pass only one waiting recv looks at a channel: what arrives between two looks of one pass would go to the later.

tests/collectives/engine/test_matching.py walks through all small interleavings.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from hocket.collectives.engine.instructions cimport recv
from hocket.collectives.plans.plan cimport Instr
from hocket.collectives.engine.run cimport (BLOCKED, DONE, EXACT, MOVED, TAG_SLOTS, Aside, Core, Run, Stash, State, fits,
                                     hk_now, not_ours, piece_at, piece_length, step_on)
from hocket.transports.channel cimport HK_AGAIN, HK_FAULT, HK_LOST, hk_channel, hk_receive_copied, hk_view


cdef int matched_recv(Core* e, Run* r, Instr* x, State* s) noexcept nogil:
    """From its peer; of several, from the first in turn whose message is there."""
    cdef int i, peer, rc, moved = BLOCKED
    if r.source >= 0:
        return finish_matched(e, r, x, s)
    if x.npeers == 1:
        rc = recv_from(e, r, x, s, x.peers[0])
        e.turn += r.source == e.turn        # a probe has named it
        return rc
    for i in range(x.npeers):
        peer = x.peers[(e.turn + i) % x.npeers]
        rc = recv_from(e, r, x, s, peer)
        if r.source >= 0:
            e.turn = peer + 1
            return rc
        if rc == HK_LOST:
            continue                        # it has dropped this communicator; if it died, the coordinator says so
        if rc < 0:
            return rc
        moved |= rc
    return moved


cdef int recv_from(Core* e, Run* r, Instr* x, State* s, int peer) noexcept nogil:
    """Like `recv`, but a message that `r` does not take is set aside until its own recv comes."""
    cdef int rc
    cdef hk_channel* ch = e.rx[peer]
    cdef Stash* m = oldest(e.aside[peer], r)
    cdef hk_view v
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
        rc = take(r, s, peer, m.tag, m.length)
        if rc < 0:
            return rc
        unpack(r, x, s, m.data)
        drop_oldest(e.aside[peer], m)
        return DONE
    rc = ch.ops.peek(ch, &r.call, &v, 0)
    if rc < 0:
        r.culprit = peer
        return BLOCKED if rc == HK_AGAIN else rc
    if not fits(r, v.tag):
        r.culprit = peer
        return set_aside(e, r, peer, &v)
    rc = take(r, s, peer, v.tag, v.length)
    if rc < 0:
        return rc
    e.rx_owner[peer] = r
    e.rx_mark[peer] = e.pass_number - 1                     # it has its message: the next recv may look
    return finish_matched(e, r, x, s)


cdef inline int take(Run* r, State* s, int peer, uint64_t tag, size_t length) noexcept nogil:
    """This message is the run's own; MISMATCH if it is not as long, or of another dtype."""
    if tag >> 32 != r.call.tag >> 32 or length != s.total:
        return not_ours(r, peer, tag, length)
    r.source, r.call.tag, r.number = peer, tag, <uint32_t>tag
    return DONE


cdef int finish_matched(Core* e, Run* r, Instr* x, State* s) noexcept nogil:
    cdef int rc = recv(e, r, x, s, r.source)
    if rc == DONE:
        e.rx_owner[r.source] = NULL
    return rc


cdef void unpack(Run* r, Instr* x, State* s, const char* data) noexcept nogil:
    cdef size_t n
    while s.done < s.total:
        n = piece_length(x, &x.dst[s.piece], s.segment) - s.at
        memcpy(piece_at(r, x, &x.dst[s.piece], s), data + s.done, n)
        step_on(x, x.dst, s, n)


cdef int probe(Core* e, Run* r, Instr* x, State* s) noexcept nogil:
    """Wait until the message is there that a recv posted now would take, or until the time that is read from where sends
    read, as one uint64.  Its peer, label and bytes go to where recvs put theirs, as three; if none came, nothing does.

    It takes nothing but what it sets aside.
    """
    cdef uint64_t until = (<uint64_t*>piece_at(r, x, x.src, s))[0]
    cdef uint64_t* answer = <uint64_t*>piece_at(r, x, x.dst, s)
    cdef int i, peer, rc, lost = 0
    for i in range(x.npeers):
        peer = x.peers[(e.turn + i) % x.npeers]
        rc = probe_one(e, r, peer, &answer[1])
        if rc == DONE:
            answer[0] = e.turn = peer         # a recv from any rank looks there first
            return DONE
        if rc == HK_LOST:
            lost += 1
        elif rc < 0:
            return rc
    if lost == x.npeers:
        return HK_LOST
    return DONE if until == 0 or until <= hk_now() else BLOCKED


cdef int probe_one(Core* e, Run* r, int peer, uint64_t* answer) noexcept nogil:
    """DONE: it is there; BLOCKED: it is not, or an earlier recv goes first."""
    cdef hk_channel* ch = e.rx[peer]
    cdef Stash* m
    cdef hk_view v
    cdef int rc
    while True:
        m = oldest(e.aside[peer], r)
        if m != NULL and (m.done == m.length or e.rx_mark[peer] != e.pass_number):
            answer[0], answer[1] = m.tag, m.length
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
        if fits(r, v.tag):
            answer[0], answer[1] = v.tag, v.length
            return DONE
        rc = set_aside(e, r, peer, &v)
        if rc < 0:
            return rc


# ------------------------------------------------------------------------------------------ what is set aside

cdef inline Stash* oldest(Aside* a, Run* r) noexcept nogil:
    """The first message that `r` takes."""
    cdef Stash* m
    cdef Stash* first = NULL
    cdef size_t slot
    if a == NULL or a.came == a.gone:
        return NULL
    if r.matched == EXACT:
        return fitting(a.first[r.call.tag % TAG_SLOTS], r)
    for slot in range(TAG_SLOTS):
        m = fitting(a.first[slot], r)
        if m != NULL and (first == NULL or m.number < first.number):
            first = m
    return first


cdef inline Stash* fitting(Stash* m, Run* r) noexcept nogil:
    while m != NULL and not fits(r, m.tag):
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
    a.gone += 1
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
        m.tag, m.length, m.number = v.tag, v.length, a.came
        m.data = <char*>malloc(max(<size_t>1, <size_t>v.length))
    if m == NULL or m.data == NULL:
        free(m)
        return HK_FAULT
    if a.last[slot] == NULL:
        a.first[slot] = m
    else:
        a.last[slot].next = m
    a.last[slot] = m
    a.came += 1
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
