"""A compiled schedule: what `lower` made of one rank's steps, as flat arrays of bytes and peers."""

from libc.stdint cimport uint32_t, uint64_t

from hocket.kernels.cpu.reduce cimport apply_fn, hk_codec
from hocket.transports.library cimport hk_library

cdef extern from "collectives/plans/weigh.h" nogil:
    enum: HK_WEIGH_WAYS
    struct hk_weigh:
        uint32_t warm
        uint32_t count
        int* way
        uint32_t best
        uint32_t alone
        uint32_t took
    uint32_t hk_weigh_next(hk_weigh*, int* timed)
    void hk_weigh_hears(hk_weigh*, uint32_t took)
    void hk_weigh_done(hk_weigh*, int told, uint32_t way, uint64_t ns)

cdef enum:
    SEND = 0       # one message to one peer, or the same message to several (multicast)
    RECV = 1       # one message from one peer, into place
    REDUCE = 2     # messages from several peers and our own operand, combined in rank order
    COPY = 3       # within this rank
    APPLY = 4      # a kernel on this rank's own pieces
    CALL = 5       # another library, or a kernel that meets those of the other ranks, does the rest
    PROBE = 6      # is a message from one of the peers there?

cdef enum:
    IN = 0         # the caller's input
    OUT = 1        # the caller's output (the same memory when in place)
    SCRATCH = 2
    BEFORE = 3     # residuals: what is added to x before it is encoded ...
    AFTER = 4      # ... and what the encoding loses; the same of the sums that this rank encodes
    OWNED_BEFORE = 5
    OWNED_AFTER = 6
    SPACES = 7

cdef struct Piece:
    int space
    size_t offset, length           # bytes; of APPLY the length is that on the wire, on both sides

cdef struct Instr:
    int kind
    int npeers
    int* peers                      # REDUCE: in rank order
    int own                         # REDUCE: our operand's place among them, -1: we bring none
    bint stays                      # SEND: its memory stays as it is until the end, or until ...
    bint changes                    # ... RECV: this one's message begins; COPY, APPLY: it does
    bint after_sends                # may overwrite what this step's sends read: wait for them; COPY: while the step waits, or ...
    bint early                      # ... as soon as they have begun
    int npieces
    Piece* src
    Piece* dst
    Piece* kept                     # SEND: where a copy of what it sends will lie, or NULL
    apply_fn apply                  # APPLY: what it does to each piece, in host memory ...
    double factor                   # ... by this
    size_t src_itemsize, dst_itemsize   # ... bytes of what it takes, and makes, for one element on the wire
    size_t segment, itemsize        # of its pieces: bytes of a segment, 0: they are whole; bytes of an element
    bint bare                       # its messages go as they are, in a plan that packs others
    const hk_codec* codec           # what its elements on the wire are, if they are of no dtype; or NULL
    bint encodes, decodes           # APPLY: its dst is encoded, not its src; the other way round ...
    size_t* held                    # APPLY, REDUCE by the codec: the floats of each piece, whose last block may be short; or NULL: all are whole
    uint64_t* dice                  # ... the random numbers that each is rounded by; NULL: the codec rounds to the nearest
    size_t* residual                # ... where the residual of each piece begins, in the spaces `before` and `after`; or NULL
    int before, after               # `before` IN: nothing is added

cdef struct Step:
    int first, count

cdef struct Count:                  # of the calls of one kind, since the communicator was made
    uint64_t calls, bytes
    uint64_t ns, waited             # estimated from those that were timed (engine/count.pxd)

cdef class Counts:
    cdef Count count

cdef class Plan:
    cdef readonly int nsteps, ninstrs, nsegments
    cdef readonly size_t segment, itemsize, scratch
    cdef readonly int dtype
    cdef readonly uint32_t fingerprint
    cdef readonly str collective, algorithm
    cdef readonly str text          # the call, for people: allreduce(float32[1024], op='sum')
    cdef readonly object facts      # what of the text its records tell as data
    cdef readonly str site          # where the user first made it: train.py:7 in main
    cdef readonly frozenset peers
    cdef readonly int traffic       # HK_ONE_WAY and so on (channel.h) ...
    cdef hk_weigh weigh             # ... or which way its ranks have found to be the fastest
    cdef tuple ways                 # ... the names of its ways
    cdef readonly size_t nbytes     # of the whole vector
    cdef public Counts counts       # where its calls are counted ...
    cdef public uint32_t what       # ... and what they are called in the recorder's table
    cdef readonly bint small        # few bytes: over before another thread could use the GIL
    cdef readonly bint meets        # its CALL is a kernel that meets the other ranks' (gpu/meeting.pyx)
    cdef object library             # the capsule of what a CALL calls
    cdef hk_library* called
    cdef Step* steps
    cdef Instr* instrs
    cdef readonly object coded      # the codec of its encoded instructions (kernels/codecs.py), or None ...
    cdef readonly bint mixed        # ... and it has others
    cdef readonly bint packs        # its messages are packed ...
    cdef hk_codec packing           # ... by this (engine/packed.h)
    cdef hk_codec codec             # ... the same, as these have it
    cdef int* peer_pool
    cdef size_t* held_pool
    cdef uint64_t* dice_pool
    cdef Piece* piece_pool

    cdef _fill(self, int i, instr, codec, int* peers, int* pieces, int* held, int* rolled)
    cdef size_t* _sizes(self, source, int* held)
    cdef Piece* _pieces(self, list source, int* pieces)
