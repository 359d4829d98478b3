"""The engine: one ordered queue of plans, run over the channels of one lane.

The only place where schedules, channels and kernels meet.  Everything below `Engine` is C structs and nogil.
"""

from cpython.ref cimport PyObject
from libc.stdint cimport uint32_t, uint64_t, uintptr_t

from hocket.collectives.plan cimport Instr, Plan, Step
from hocket.kernels.reduce cimport reduce_fn
from hocket.transports.channel cimport hk_channel, hk_view


cdef extern from "transports/atomics.h" nogil:
    uint32_t hk_load32(const uint32_t*)
    void hk_store32(uint32_t*, uint32_t)

cdef extern from "transports/wait.h" nogil:
    struct pollfd:
        int fd
        short events
    struct hk_ladder:
        uint32_t spins
        uint32_t spins_now
        uint64_t yield_ns
        uint64_t slow_ns
    struct hk_wait:
        uint32_t polls
    uint64_t hk_now()
    uint64_t hk_wait_step(hk_wait*, const hk_ladder*, uint32_t* bell, pollfd*, int)
    void hk_wait_reset(hk_wait*, hk_ladder*, uint32_t* bell)


cdef enum:                  # what advancing a run can say; errors are negative, HK_LOST and HK_FAULT among them
    BLOCKED = 0
    MOVED = 1
    DONE = 2
    MISMATCH = -4           # a message of another call than ours
    ABORTED = -5            # the control plane stopped this communicator
    TIMED_OUT = -6
    RAISED = -7             # a Python exception, kept in `Engine.error`
    BUSY = 3                # another thread's call is running, or some are queued: queue this one


cdef struct State:          # of one instruction, while its step is in flight
    size_t done, total      # bytes of the message
    size_t at               # ... within the piece
    int piece, segment
    bint opened, complete


cdef struct Run:            # one execution of a plan
    Step* steps
    Instr* instrs
    int nsteps, nsegments, capacity
    size_t segment, itemsize
    char* base[3]           # IN, OUT, SCRATCH
    uint64_t tag
    reduce_fn reduce
    PyObject* user          # a user's reduction, called instead
    bint matched            # send/recv: messages are matched by tag, others are set aside
    int t                   # the merged step: segment k is in step t - k
    State* states
    int* active
    int nactive, remaining, sends_left
    int culprit             # the peer behind an error
    uint32_t foreign        # the call number of a message that was not ours
    uint64_t limit          # ns that the run may take, 0: any; counted once it has waited long enough to be looked at
    uint64_t deadline       # ns, 0: not counted yet


cdef struct Stash:          # a message that came before its recv
    uint64_t tag
    size_t length, done
    char* data
    Stash* next


cdef struct Core:           # what runs need of an engine, without Python
    int rank, size
    hk_channel** tx
    hk_channel** rx
    uint32_t* tx_mark       # in which pass the channel was last held by an unfinished message
    uint32_t* rx_mark       # ... or, of recvs by tag, in which pass one has looked
    uint32_t pass_number
    Stash** stash
    Run** rx_owner          # send/recv: the run that is in the middle of a message
    volatile int aborted
    int failed              # the code of the first run that failed: what it left half sent makes the channels unusable
    int failed_culprit
    hk_ladder ladder
    uint32_t* bell
    PyObject* self          # the Engine (borrowed)
    void* head              # queued asynchronous runs (work.Node)
    uint32_t pending        # are there any?  0 is a release: whoever queued or drove them is through
    uint32_t busy           # a blocking call drives this engine: nobody else may
    int (*others)(Core*) noexcept nogil   # drive what other threads have queued meanwhile (concurrent engines)
    bint listed             # among the engines with queued runs
    bint concurrent         # send/recv: queued runs progress side by side, not one after the other


cdef int run_init(Run* r, Plan plan) except -1
cdef void run_free(Run* r) noexcept
cdef int advance(Core* e, Run* r) noexcept nogil
cdef int drive(Core* e, Run* r, int polls) noexcept nogil
cdef int failed_before(Core* e, Run* r) noexcept nogil
cdef int has_failed(Core* e, Run* r, int rc) noexcept nogil
cdef int collect(Core* e, Run* r, pollfd* fds, int room) noexcept nogil
cdef int slow_check(Core* e, uint64_t waited) noexcept nogil
cdef int scale_now(int dtype, void* dst, const void* src, size_t count, double factor) noexcept nogil


cdef class Engine:
    cdef Core core
    cdef uint32_t seq
    cdef readonly bint busy     # a blocking call is running, or has failed
    cdef uint32_t opening       # calls that wait for their channels: begun, but not numbered
    cdef int polls_with_gil
    cdef Run run                # of blocking calls
    cdef char* scratch
    cdef size_t scratch_bytes
    cdef public int culprit
    cdef readonly Plan plan     # of the latest call
    cdef list recent            # plans of the latest RECENT calls, by number
    cdef readonly uint32_t foreign
    cdef public object owner    # told of long waits: owner.on_wait(engine, seconds)
    cdef public object error
    cdef list keep
    cdef readonly dict plans

    cdef bint claim(self) noexcept
    cdef void release(self) noexcept
    cdef int point(self, Run* r, Plan plan) except -1
    cdef int perform(self, Run* r, Plan plan) except -1000
    cdef int prepare(self, Run* r, Plan plan, uintptr_t src, uintptr_t dst, int op, object user) except -1
