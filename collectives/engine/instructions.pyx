"""Instructions: send, recv and reduce, each as far as its channels go without waiting; copy, apply and call."""

from cpython.buffer cimport PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport uint64_t, uintptr_t

from hocket.collectives.plans.plan cimport OUT, Instr, hk_weigh_hears
from hocket.collectives.engine.run cimport (BLOCKED, DONE, LATE, MOVED, RAISED, Core, Run, State, dice, not_ours, piece_at,
                                     hk_now, piece_length, residual, step_on, way_in, way_out)
from hocket.collectives.recording.recorder cimport hk_clock_now
from hocket.errors import TransportError
from hocket.kernels.cpu.reduce cimport hk_add_residual, hk_dice, hk_residual
from hocket.transports.channel cimport HK_AGAIN, HK_ONE_WAY, HK_SLOTS, hk_channel, hk_channel_ops, hk_receive, hk_view
from hocket.transports.library cimport hk_library

cdef extern from "system/copy.h" nogil:
    void hk_copy_of(void*, const void*, size_t, size_t whole)

cdef enum:
    CUT_BYTES = 65536           # no channel cuts less than this, if it is not full
    BIG_BYTES = 65536           # after moving so much, let the other messages of the step have a turn
    PIECE_BYTES = 16384         # over memory the reader of a message begins when so much of it is there ...
    PIECES_UP_TO = 524288       # ... of longer ones when a channel's own share is (docs/performance.md)


cdef int send(Core* e, Run* r, Instr* x, State* s) noexcept nogil:
    cdef hk_channel* ch = way_out(e, r, x, x.peers[0])
    cdef hk_channel* several[MAX_WAYS]
    cdef const hk_channel_ops* ops = ch.ops
    cdef int i, rc = DONE, moved = BLOCKED
    cdef long n
    cdef size_t left
    cdef char* at
    cdef bint keeps = x.kept != NULL and (r.keeper == NULL or r.keeper == x) and r.device == NULL and (
        r.packs == NULL or x.bare)
    r.call.stays, r.call.keep, r.call.kept = 0, NULL, &s.kept
    if x.stays and ch.late and ops.settled != NULL and is_late(r, x.peers[0]):
        r.call.stays = 1
    while s.done < s.total or not s.opened:
        left, at = 0, NULL
        if s.piece < x.npieces:
            at = piece_at(r, x, &x.src[s.piece], s)
            left = piece_length(x, &x.src[s.piece], s.segment) - s.at
            if keeps:
                r.call.keep = piece_at(r, x, &x.kept[s.piece], s)
            if r.user != NULL or x.codec != NULL and r.packs == NULL:
                left = min(left, whole_elements(r, x))
            elif r.matched and ch.bell != NULL and s.total <= PIECES_UP_TO and r.call.traffic in (HK_ONE_WAY, HK_SLOTS):
                left = min(left, PIECE_BYTES)
        if x.npeers == 1:
            n = ops.send(ch, &r.call, s.total, s.done, at, left)
        else:
            for i in range(x.npeers):
                several[i] = e.tx[x.peers[i]]
            n = ops.multicast(several, x.npeers, &r.call, s.total, s.done, at, left)
        if n < 0:
            r.culprit = x.peers[0]
            return moved if n == HK_AGAIN else <int>n
        s.opened = True
        moved = MOVED
        step_on(x, x.src, s, n)
        if s.kept:
            r.keeper = x
        if n >= BIG_BYTES and s.done < s.total:
            return moved
    if ops.settled != NULL:
        for i in range(x.npeers):           # all of them: each may be asked to write what its peer cannot read
            n = ops.settled(way_out(e, r, x, x.peers[i]), &r.call)
            if n < 0:
                r.culprit = x.peers[i]
                return <int>n
            if n == 0:
                rc = moved
    return rc


cdef inline bint is_late(Run* r, int peer) noexcept nogil:
    """Remember to let go of what this peer is sent.  False: there are too many."""
    cdef int i
    for i in range(r.nlate):
        if r.late[i] == peer:
            return True
    if r.nlate == LATE:
        return False
    r.late[r.nlate] = peer
    r.nlate += 1
    return True


cdef int let_go(Core* e, Run* r, const char* at, size_t nbytes) noexcept nogil:
    """Memory that was sent is about to change: here, or (NULL) anywhere."""
    cdef int i, n, rc = 1
    r.call.stays, r.call.changes, r.call.nbytes = 0, at, nbytes
    for i in range(r.nlate):
        n = e.tx[r.late[i]].ops.settled(e.tx[r.late[i]], &r.call)
        if n < 0:
            r.culprit = r.late[i]
        rc = min(rc, n)
    r.call.changes = NULL
    return rc


cdef int changes(Core* e, Run* r, Instr* x, State* s) noexcept nogil:
    """It is about to write where messages were sent from."""
    cdef int i, rc
    cdef size_t n
    for i in range(x.npieces):
        n = piece_length(x, &x.dst[i], s.segment)
        if n:
            rc = let_go(e, r, r.base[x.dst[i].space] + x.dst[i].offset + <size_t>s.segment * x.segment, n)
            if rc < 0:
                return rc
    return MOVED


cdef inline int open_message(Run* r, int peer, hk_channel* ch, State* s, hk_view* v, size_t want) noexcept nogil:
    """Look at the head of the channel; the first time, prove that this message is ours."""
    cdef int n = ch.ops.peek(ch, &r.call, v, want)
    if n < 0:
        r.culprit = peer
        return BLOCKED if n == HK_AGAIN else n
    if v.tag != r.call.tag or v.length != s.total:
        return not_ours(r, peer, v.tag, v.length)
    return MOVED


cdef inline void came(Run* r, hk_view* v) noexcept nogil:
    """The first of a message has come, of a call that counts in a try, or the one behind it."""
    if r.call.took:
        hk_weigh_hears(r.weigh, v.took)
    if r.came_first == 0:
        r.came_first = hk_now()


cdef int recv(Core* e, Run* r, Instr* x, State* s, int peer) noexcept nogil:
    cdef int rc, moved = BLOCKED
    cdef hk_channel* ch = way_in(e, r, x, peer)
    cdef hk_view v
    cdef size_t left
    cdef long n
    if not s.opened:
        v.took = 0
        rc = open_message(r, peer, ch, s, &v, 0)
        if rc != MOVED:
            return rc
        if x.changes and r.nlate:
            rc = changes(e, r, x, s)
            if rc < 0:
                return rc
        s.opened = True
        moved = MOVED
        if r.weigh != NULL:
            came(r, &v)
    while s.done < s.total:
        left = piece_length(x, &x.dst[s.piece], s.segment) - s.at
        n = hk_receive(ch, &r.call, piece_at(r, x, &x.dst[s.piece], s), left, s.total - s.done)
        if n < 0:
            r.culprit = peer
            return moved if n == HK_AGAIN else <int>n
        moved = MOVED
        step_on(x, x.dst, s, n)
        if n >= BIG_BYTES and s.done < s.total:
            return moved
    return drop(r, peer, ch, 0, True) if s.total == 0 else DONE


cdef inline int drop(Run* r, int peer, hk_channel* ch, size_t n, bint end) noexcept nogil:
    """DONE, or an error."""
    cdef int rc = ch.ops.consume(ch, &r.call, n, end)
    if rc < 0:
        r.culprit = peer
        return rc
    return DONE


cdef int reduce(Core* e, Run* r, Instr* x, State* s) noexcept nogil:
    """Take what all the peers have sent so far, and combine it with our own operand in rank order."""
    cdef hk_view v
    cdef const void* ways[MAX_WAYS]
    cdef int i, k, rc, moved = BLOCKED
    cdef size_t n, left
    cdef uint64_t began
    cdef hk_channel* ch
    s.opened = True
    while True:
        left = 0
        if s.done < s.total:
            left = piece_length(x, &x.dst[s.piece], s.segment) - s.at
        n, k = left, 0
        for i in range(x.npeers):
            if i == x.own:
                ways[k] = piece_at(r, x, &x.src[s.piece], s) if left else NULL
                k += 1
            ch = way_in(e, r, x, x.peers[i])
            v.took = 0
            rc = open_message(r, x.peers[i], ch, s, &v, x.itemsize)
            if rc != MOVED:
                return moved if rc == BLOCKED else rc
            if r.weigh != NULL:
                came(r, &v)
            ways[k] = v.data
            k += 1
            n = min(n, v.avail)
        if x.own == x.npeers:
            ways[k] = piece_at(r, x, &x.src[s.piece], s) if left else NULL
            k += 1
        n -= n % x.itemsize
        if n == 0 and left:
            return moved
        if n:
            began = hk_clock_now(&e.trace.clock) if e.trace != NULL else 0
            if r.user != NULL:
                if call_user(e, r, piece_at(r, x, &x.dst[s.piece], s), ways, k, n) < 0:
                    return RAISED
            elif x.codec != NULL:
                if fold(e, r, x, s, ways, k, n) < 0:
                    return RAISED
            elif r.device != NULL:
                if r.device.reduce(r.device, r, x, piece_at(r, x, &x.dst[s.piece], s), ways, k, n // x.itemsize,
                                   hk_dice(0, 0), hk_residual(NULL, NULL)) < 0:
                    return device_failed(e, r)
            else:
                r.reduce(piece_at(r, x, &x.dst[s.piece], s), ways, k, n // x.itemsize)
            if began:
                r.kernel_ns += hk_clock_now(&e.trace.clock) - began
                r.kernel_bytes += n
        for i in range(x.npeers):
            rc = drop(r, x.peers[i], way_in(e, r, x, x.peers[i]), n, s.done + n == s.total)
            if rc < 0:
                return rc
        moved = MOVED
        step_on(x, x.dst, s, n)
        if s.done == s.total:
            return DONE
        if n >= BIG_BYTES:
            return moved


cdef inline int fold(Core* e, Run* r, Instr* x, State* s, const void** ways, int k, size_t n) noexcept nogil:
    """The sum of n bytes of a codec's elements.  0, or RAISED."""
    cdef size_t first = (<size_t>s.segment * x.segment + s.at) // x.itemsize * x.codec.block
    cdef size_t floats = n // x.itemsize * x.codec.block
    if x.held != NULL:
        floats = min(floats, x.held[s.piece] - first)
    cdef void* out = piece_at(r, x, &x.dst[s.piece], s)
    cdef hk_dice rolls = dice(r, x, s.piece, first)
    cdef hk_residual kept = residual(r, x, s.piece, first)
    if r.device != NULL:
        return device_failed(e, r) if r.device.reduce(r.device, r, x, out, ways, k, floats, rolls, kept) < 0 else 0
    if x.residual != NULL:
        x.codec.fold_residual(x.codec, out, ways, k, floats, kept, rolls)
    else:
        x.codec.fold(x.codec, out, ways, k, floats, rolls)
    return 0


cdef inline size_t whole_elements(Run* r, Instr* x) noexcept nogil:
    """Bytes of packets that end between elements, however odd their size."""
    cdef size_t cut = CUT_BYTES if r.device == NULL else r.device.piece
    return cut - cut % x.itemsize


cdef int call_user(Core* e, Run* r, void* out, const void** ways, int k, size_t n) noexcept nogil:
    """With memory of the host's; or, of a device's, with its addresses and the bytes at each."""
    with gil:
        try:
            user = <object>r.user
            if r.device != NULL:
                user([<uintptr_t>ways[i] for i in range(k)], <uintptr_t>out, n)
            else:
                # PyBUF_WRITE for the inputs, too: torch warns of a tensor that cannot be written.
                given = [PyMemoryView_FromMemory(<char*>ways[i], n, PyBUF_WRITE) for i in range(k)]
                user(given, PyMemoryView_FromMemory(<char*>out, n, PyBUF_WRITE))
            return 0
        except BaseException as error:
            (<object>e.self).error = error
            return -1


cdef int call(Core* e, Run* r, Instr* x, State* s) noexcept nogil:
    """A kernel that meets the other ranks', or another library's collective.

    The library's at once where the caller waits anyway, else begun, and looked at.
    """
    cdef hk_library* library = r.library
    cdef char* source = r.base[x.src[0].space] + x.src[0].offset
    cdef int rc
    if r.device != NULL:
        return device_failed(e, r) if r.device.call(r.device, r, source, r.base[OUT]) < 0 else DONE
    if s.opened:
        rc = library.test(library)
        return call_failed(e, library) if rc < 0 else DONE if rc else BLOCKED
    s.opened = True
    if r.waits and library.call != NULL:
        rc = library.call(library, source, r.base[OUT])
        return call_failed(e, library) if rc < 0 else DONE
    rc = library.start(library, source, r.base[OUT])
    return call_failed(e, library) if rc < 0 else MOVED


cdef int call_failed(Core* e, hk_library* library) noexcept nogil:
    with gil:
        (<object>e.self).error = TransportError(f"the library failed: {(<bytes>library.why).decode(errors='replace')}")
    return RAISED


cdef inline int move(Core* e, Run* r, void* to, const void* source, size_t n) noexcept nogil:
    if r.device == NULL:
        hk_copy_of(to, source, n, n)
        return 0
    return device_failed(e, r) if r.device.copy(r.device, r.call.stream, to, source, n) < 0 else 0


cdef int device_failed(Core* e, Run* r) noexcept nogil:
    with gil:
        (<object>e.self).error = TransportError(f"the GPU refused {(<bytes>r.device.words).decode(errors='replace')}")
    return RAISED


cdef int copy(Core* e, Run* r, Instr* x, State* s) noexcept nogil:
    """0, or RAISED."""
    cdef int i
    cdef size_t n, skip = <size_t>s.segment * x.segment
    for i in range(x.npieces):
        n = piece_length(x, &x.dst[i], s.segment)
        if n and move(e, r, r.base[x.dst[i].space] + x.dst[i].offset + skip,
                      r.base[x.src[i].space] + x.src[i].offset + skip, n) < 0:
            return RAISED
    return 0


cdef int copy_own(Core* e, Run* r, Instr* x, State* s) noexcept nogil:
    """The copy of what is sent, while the step waits, if no send makes it."""
    cdef State* sent
    if r.keeper == NULL:
        r.keeper = x
    if r.keeper != x:
        sent = &r.states[r.keeper - r.instrs]
        if sent.done < sent.total:
            return BLOCKED
        if sent.kept == sent.total:
            return DONE
    return DONE if copy(e, r, x, s) == 0 else RAISED


cdef int apply(Core* e, Run* r, Instr* x, State* s) noexcept nogil:
    """0, or RAISED."""
    cdef int i
    cdef size_t n, skip = <size_t>s.segment * (x.segment // x.itemsize)     # elements on the wire
    cdef size_t skip_floats
    cdef hk_dice rolls = hk_dice(0, 0)
    cdef hk_residual kept
    cdef char* to
    cdef char* source
    for i in range(x.npieces):
        n = piece_length(x, &x.dst[i], s.segment) // x.itemsize
        if n == 0:
            continue
        to = r.base[x.dst[i].space] + x.dst[i].offset + skip * x.dst_itemsize
        source = r.base[x.src[i].space] + x.src[i].offset + skip * x.src_itemsize
        skip_floats = skip
        if x.codec != NULL:
            skip_floats = skip * x.codec.block
            n = min(n * x.codec.block, x.held[i] - skip_floats)
            rolls = dice(r, x, i, skip_floats)
        kept = residual(r, x, i, skip_floats)
        if r.device != NULL:
            if r.device.apply(r.device, r, x, to, source, n, rolls, kept) < 0:
                return device_failed(e, r)
        elif x.residual != NULL and x.codec == NULL:
            hk_add_residual(to, source, n, kept)
        elif x.residual != NULL:
            x.codec.encode_residual(x.codec, to, source, n, kept, rolls)
        elif x.codec == NULL:
            x.apply(to, source, n, x.factor)
        elif x.decodes:
            x.codec.decode(x.codec, to, source, n, x.factor)
        else:
            x.codec.encode(x.codec, to, source, n, x.factor, rolls)
    return 0
