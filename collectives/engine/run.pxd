"""Run: one execution of a plan, and Core: what runs need of their engine.  C structs, used without the GIL."""

from cpython.float cimport PyFloat_AS_DOUBLE
from cpython.ref cimport PyObject
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from hocket.collectives.plans.plan cimport IN, SPACES, Count, Instr, Piece, Plan, Step, hk_weigh
from hocket.collectives.recording.recorder cimport hk_record, hk_writer
from hocket.kernels.cpu.reduce cimport hk_codec, hk_dice, hk_residual, hk_stir, reduce_fn
from hocket.transports.channel cimport hk_call, hk_channel
from hocket.transports.library cimport hk_library


cdef extern from "system/atomics.h" nogil:
    uint32_t hk_load32(const uint32_t*)
    void hk_store32(uint32_t*, uint32_t)
    int hk_swap64(uint64_t*, uint64_t* seen, uint64_t)
    void hk_store64(uint64_t*, uint64_t)

cdef extern from "collectives/engine/packed.h" nogil:
    struct hk_packed:
        pass
    hk_packed* hk_packed_new()
    void hk_packed_free(hk_packed*)
    hk_channel* hk_packed_over(hk_packed*, hk_channel*, const hk_codec*)

cdef extern from "system/wait.h" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    struct hk_ladder:
        uint32_t spins, spins_now
        uint64_t yield_ns, slow_ns
        int home
    struct hk_wait:
        uint32_t polls, told, news
        uint64_t since, away
        uint64_t (*asks)() noexcept nogil
    uint64_t hk_now()
    void hk_ring_bell(uint32_t* bell)
    void hk_wait_behind(hk_ladder*, uint64_t now, uint64_t computed)
    void hk_ladder_learn(hk_ladder* to, const hk_ladder* learned)
    bint hk_wait_sleeps(const hk_wait*, const hk_ladder*)
    uint64_t hk_wait_step(hk_wait*, hk_ladder*, uint32_t* bell, pollfd*, int)
    void hk_wait_reset(hk_wait*, hk_ladder*, uint32_t* bell)


cdef enum: LONGEST = 1000000000     # seconds, 31 years: more is for ever


cdef inline uint64_t nanoseconds(double seconds) noexcept nogil:
    """A time limit; 0, for ever, of none, of infinity and of more than LONGEST."""
    return <uint64_t>(seconds * 1e9) if 0 < seconds < LONGEST else 0


cdef enum: EARLIER_CALLS_NS = 1000000000   # for calls before the one that the ranks parted at


cdef enum:                  # who may drive an engine (a channel's library may mind; see Engine.thread)
    ANY_THREAD = 0
    CALLERS = 1             # threads that call hocket, but not its own


cdef extern from *:         # of Run.weight
    """
    #define HK_TIMED ((uint64_t)1 << 32)
    #define HK_NOTED ((uint64_t)1 << 33)
    """
    const uint64_t TIMED "HK_TIMED"
    const uint64_t NOTED "HK_NOTED"     # its record is not the last one any more: its end needs another


cdef enum:                  # of Core.attends
    HELPS = 1               # it drives that: no other core would
    HOLDS = 2               # lower lanes are held while it goes forward


cdef enum:                  # what advancing a run can say; errors are negative, HK_LOST and HK_FAULT among them
    BLOCKED = 0
    MOVED = 1
    DONE = 2
    MISMATCH = -4           # a message of another call than ours
    ABORTED = -5            # the control plane stopped this communicator
    TIMED_OUT = -6
    RAISED = -7             # a Python exception, kept in `Engine.error`
    BUSY = 3                # another thread's call is running, or some are queued: queue this one


cdef enum: LATE = 4         # peers of a run whose sends need no copy where they stay


cdef struct State:          # of one instruction, while its step is in flight
    size_t done, total      # bytes of the message
    size_t at               # ... within the piece
    int piece, segment
    bint opened, complete
    int ready               # in a trace: was it tried, and not held up?
    size_t kept             # bytes of a send that were copied to where its copy is wanted


cdef struct Run


cdef struct DeviceOps:      # what computes on GPU arrays, in the order of a stream; see gpu/stream_ops.pyx
    int (*copy)(DeviceOps*, void* stream, void* to, const void* source, size_t n) noexcept nogil     # all: 0, or -1
    int (*reduce)(DeviceOps*, Run*, Instr*, void* out, const void** ways, int k, size_t count, hk_dice,
                  hk_residual) noexcept nogil
    int (*apply)(DeviceOps*, Run*, Instr*, void* out, const void* source, size_t count, hk_dice,
                 hk_residual) noexcept nogil    # a residual whose `after` is NULL: none
    int (*call)(DeviceOps*, Run*, void* source, void* out) noexcept nogil     # the kernel that meets those of other ranks
    int (*begin)(DeviceOps*, Run*) noexcept nogil     # nothing of the run has been issued yet ...
    int (*end)(DeviceOps*, Run*) noexcept nogil       # ... all of it has
    const char* words       # why the last one returned -1
    size_t piece            # bytes that its channels take at once


cdef struct Kernels:        # of a device, that the instructions of a call launch; NULL: it has no such instruction
    void* reduce
    void* many              # the same, of more operands
    void* scale
    void* encode
    void* decode
    void* fold              # a codec's reduction
    void* encode_kept       # the same two with a residual ...
    void* fold_kept
    void* add               # ... and the sum of two vectors of float32


cdef struct Run:            # one execution of a plan
    Step* steps
    Instr* instrs
    int nsteps, nsegments, capacity
    char* base[SPACES]      # IN, OUT, SCRATCH; where the plan has residuals, those
    hk_call call            # what channels are told: the tag; the stream of arrays in a device's memory; a hint
    reduce_fn reduce
    PyObject* user          # a user's reduction, called instead: see call_user in instructions.pyx
    const hk_codec* packs   # its messages go as this codec packs elements; or NULL
    hk_library* library     # for CALL
    DeviceOps* device       # of the arrays' memory; NULL: it is the host's
    Kernels kernels         # ... that run there
    void* meeting           # ... and the one which meets those of the other ranks; or NULL
    Instr* keeper           # who makes the copy of what is sent: that send, or the COPY; NULL: nobody yet
    int nlate, late[LATE]   # peers that may have to be sent again what lies in the memory of its sends
    bint waits              # the caller waits for it in this thread, so a library may block
    uint32_t matched        # send/recv: the bits by which tags are matched, EXACT or ANY_TAG; 0: messages are not matched
    int source              # ... the peer whose message it takes, or has taken; -1: not known yet
    int t                   # the merged step: segment k is in step t - k
    State* states
    int* active
    int nactive, remaining, sends_left
    int culprit             # the peer behind an error
    uint32_t foreign        # of a message that was not ours: its call number; of one matched by tag, its dtype
    size_t came             # ... and its bytes
    uint64_t limit          # ns that a wait may last while nothing moves, 0: for ever
    uint64_t deadline       # ns, 0: not set in this wait
    Count* count            # of its kind of call
    uint64_t weight         # low half: for how many calls its time stands; above it TIMED and NOTED; 0: neither
    hk_weigh* weigh         # of a call that counts in a try, or is the next one; or NULL
    bint counts             # ... is it the former?
    uint32_t way            # ... the one of its ways that it goes
    uint64_t came_first     # ns: its first message, 0: none yet
    uint64_t began          # ns
    uint64_t blocked_at     # ... since when nothing moves, 0: something does, or nobody has looked
    bint told               # ... and is that recorded?
    uint32_t number         # among its engine's calls; of a message, which has none, its tag ...
    uint32_t what           # ... and its kind of call, in the recorder's table: side by side, as records have them
    uint64_t kernel_ns, kernel_bytes    # in a trace: of this step's kernels


cdef enum:
    TAG_SLOTS = 256         # of the messages set aside from one peer

cdef extern from *:
    """
    #define HK_EXACT 0xffffffffu
    #define HK_ANY_TAG 0x80000000u
    #define HK_ASKS_ANY_TAG ((uint64_t)1 << 63)
    """
    const uint32_t EXACT "HK_EXACT"
    const uint32_t ANY_TAG "HK_ANY_TAG"     # all of users' tags, which lack this bit
    const uint64_t ASKS_ANY_TAG "HK_ASKS_ANY_TAG"   # a label with this bit asks for it; see communicator/messenger.py


cdef inline void match(Run* r, uint64_t label) noexcept nogil:
    """Make `r` a send or recv of messages with this label."""
    r.call.tag = label & ~ASKS_ANY_TAG
    r.number = <uint32_t>label
    r.matched = ANY_TAG if label & ASKS_ANY_TAG else EXACT


cdef inline uint64_t label(Run* r) noexcept nogil:
    """The label that `match` was told, or, once a message is taken, that message's."""
    return r.call.tag | (ASKS_ANY_TAG if r.matched == ANY_TAG and r.source < 0 else 0)


cdef inline bint fits(Run* r, uint64_t tag) noexcept nogil:
    """Is a message with this tag one that `r` takes?"""
    return ((tag ^ r.call.tag) & r.matched) == 0


cdef struct Stash:          # a message that came before its recv
    uint64_t tag
    uint64_t number         # of those set aside from its peer
    size_t length, done
    char* data
    Stash* next


cdef struct Aside:          # the messages set aside from one peer, in lists by tag, each in the order of arrival
    Stash* first[TAG_SLOTS]
    Stash* last[TAG_SLOTS]
    Stash* coming           # the one still on its way in, or NULL: the latest
    uint64_t came, gone     # how many ever were set aside, and taken


cdef struct Core:           # what runs need of an engine, without Python
    int rank, size
    hk_channel** tx
    hk_channel** rx
    hk_packed** packed      # NULL until a call packs: by peer, over tx, and after these over rx
    uint32_t* tx_mark       # in which pass the channel was last held by an unfinished message
    uint32_t* rx_mark       # the same; of recvs by tag, the pass in which one has looked
    uint32_t pass_number
    Aside** aside           # NULL until a message of that peer's comes before its recv
    Run** rx_owner          # send/recv: the run that is in the middle of a message
    int turn                # the peer at which a recv from any rank looks first: none of them starves
    uint32_t aborted
    uint32_t aborted_from   # the first call that ends by it, 0: all
    uint64_t aborted_at     # ... until EARLIER_CALLS_NS later, when all end
    int failed              # the code of the first run that failed: what it left half sent makes the channels unusable
    int failed_culprit
    hk_writer* record       # where its calls are recorded, or NULL ...
    hk_writer* trace        # ... and the same again in a trace, which has more of them; else NULL
    hk_record nowhere       # what is written instead where nothing is recorded
    hk_ladder ladder, queued    # of blocking calls, and of waits for works: under the GIL
    uint32_t* bell
    PyObject* self          # the Engine (borrowed)
    void* head              # queued asynchronous runs (progress.Node), the first
    void* tail              # ... and the last
    uint32_t pending        # are there any?  Then it is in the queue.  0 is stored when no thread uses them any more
    uint32_t claimed        # a blocking call, or a thread that drives what is queued, is at it; nobody else may
    int (*others)(Core*) noexcept nogil   # drive what other threads have queued meanwhile (concurrent engines)
    int priority            # of its lane: higher ones are served first
    int attends             # what a blocking call that waits does where something is queued elsewhere: HELPS, HOLDS
    bint leads_out          # some of its channels leave the host: lanes hold each other back on the way
    uint64_t thread         # who may drive: ANY_THREAD, CALLERS, or the one thread with this identifier
    bint concurrent         # send/recv: queued runs progress side by side, not one after the other


cdef extern from "pthread.h" nogil:
    uint64_t this_thread "(uint64_t)pthread_self" ()


cdef inline hk_channel* way_out(Core* e, Run* r, Instr* x, int peer) noexcept nogil:
    """The channel on which `r` sends what `x` says to this peer."""
    return e.tx[peer] if r.packs == NULL or x.bare else hk_packed_over(e.packed[peer], e.tx[peer], r.packs)


cdef inline hk_channel* way_in(Core* e, Run* r, Instr* x, int peer) noexcept nogil:
    return e.rx[peer] if r.packs == NULL or x.bare else hk_packed_over(e.packed[e.size + peer], e.rx[peer], r.packs)


cdef inline bint may_drive(Core* e, bint caller) noexcept nogil:
    """May this thread drive the engine?  `caller`: it is not hocket's own."""
    return e.thread == ANY_THREAD or caller and (e.thread == CALLERS or e.thread == this_thread())


cdef inline bint stopped(Core* e, uint64_t number) noexcept nogil:
    """Does call `number` end because the engine was aborted?  Those before `aborted_from` may finish, for a while."""
    return hk_load32(&e.aborted) and (number >= e.aborted_from or hk_now() > e.aborted_at + EARLIER_CALLS_NS)


cdef inline bint run_stopped(Core* e, Run* r) noexcept nogil:
    return hk_load32(&e.aborted) and (r.matched or stopped(e, r.call.tag >> 32))


cdef inline int not_ours(Run* r, int peer, uint64_t tag, size_t length) noexcept nogil:
    """A message that this run cannot take: keep what it was."""
    r.culprit, r.foreign, r.came = peer, <uint32_t>(tag >> 32), length
    return MISMATCH


cdef inline size_t piece_length(Instr* x, Piece* p, int k) noexcept nogil:
    """Bytes of piece `p` that belong to segment `k`."""
    cdef size_t first
    if x.segment == 0:
        return p.length
    first = <size_t>k * x.segment
    if first >= p.length:
        return 0
    return min(x.segment, p.length - first)


cdef inline char* piece_at(Run* r, Instr* x, Piece* p, State* s) noexcept nogil:
    return r.base[p.space] + p.offset + <size_t>s.segment * x.segment + s.at


cdef inline void step_on(Instr* x, Piece* pieces, State* s, size_t moved) noexcept nogil:
    s.done += moved
    s.at += moved
    while s.piece < x.npieces and s.at >= piece_length(x, &pieces[s.piece], s.segment):
        s.piece += 1
        s.at = 0


cdef inline hk_dice dice(Run* r, Instr* x, int piece, size_t first) noexcept nogil:
    """The random numbers by which float `first` of a piece, and on, is rounded: others in each call, the same each time
    that the program runs, and the same on all ranks that make the same sum."""
    cdef uint64_t key = 0
    if x.dice != NULL:
        key = hk_stir(hk_stir(x.codec.seed, r.call.tag), x.dice[piece])
    return hk_dice(key, <uint32_t>first)


cdef inline hk_residual residual(Run* r, Instr* x, int piece, size_t first) noexcept nogil:
    """The addresses of the residual from float `first` of a piece on; NULL if the instruction has none."""
    cdef hk_residual addresses = hk_residual(NULL, NULL)
    if x.residual == NULL:
        return addresses
    cdef size_t at = x.residual[piece] + first * sizeof(float)
    addresses.before = NULL if r.base[x.before] == NULL or x.before == IN else r.base[x.before] + at
    addresses.after = r.base[x.after] + at
    return addresses


cdef inline void run_reset(Run* r, Plan plan) noexcept nogil:
    """Make `r` a fresh run of `plan`, but for its arrays."""
    r.steps, r.instrs = plan.steps, plan.instrs
    r.nsteps, r.nsegments = plan.nsteps, plan.nsegments
    r.call.traffic, r.call.took, r.call.whole = plan.traffic, 0, 0
    r.t, r.limit, r.deadline, r.matched, r.source, r.user = 0, 0, 0, 0, -1, NULL
    r.packs = &plan.packing if plan.packs else NULL
    r.library, r.waits, r.device, r.call.stream = plan.called, False, NULL, NULL
    r.meeting, r.count, r.weight, r.what = NULL, &plan.counts.count, 0, plan.what
    r.weigh = &plan.weigh if plan.weigh.warm else NULL
    r.remaining = r.sends_left = r.nactive = r.nlate = r.call.stays = 0
    r.call.changes = r.call.keep = NULL
    r.keeper = NULL


cdef inline int run_init(Run* r, Plan plan) except -1:
    """The same; its arrays grow and are kept."""
    run_reset(r, plan)
    if plan.ninstrs > r.capacity:
        free(r.states)
        free(r.active)
        r.capacity = plan.ninstrs
        r.states = <State*>calloc(r.capacity, sizeof(State))
        r.active = <int*>calloc(r.capacity, sizeof(int))
        if r.states == NULL or r.active == NULL:
            r.capacity = 0
            raise MemoryError
    return 0


cdef inline bint limited(object timeout, uint64_t* limit) noexcept:
    """Is it a number of seconds that needs no checks?  Then it is the limit."""
    if type(timeout) is not float or not PyFloat_AS_DOUBLE(timeout) > 0:
        return False
    limit[0] = nanoseconds(PyFloat_AS_DOUBLE(timeout))
    return True
