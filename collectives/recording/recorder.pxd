"""The recorder of this process: a file with a ring for each engine."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "system/record.h" nogil:
    enum: HK_NOBODY
    enum: HK_RINGS
    enum: HK_SAW_CALL
    enum: HK_SAW_DONE
    enum: HK_SAW_CALLED
    enum: HK_SAW_FAIL
    enum: HK_SAW_WAIT_RECV
    enum: HK_SAW_WAIT_SEND
    enum: HK_SAW_MOVED
    enum: HK_SAW_SUBMIT
    enum: HK_SAW_STEP
    enum: HK_SAW_SEND_READY
    enum: HK_SAW_RECV_READY
    enum: HK_SAW_RECV_END
    enum: HK_SAW_KERNEL
    enum: HK_SAW_NO_CORE
    struct hk_record:
        uint64_t ns
        uint32_t seq, what
        uint64_t bytes
        uint16_t kind, peer, step, lane
    struct hk_ring:
        uint64_t at, written
        uint32_t room, claimed
    struct hk_clock:
        uint32_t counts
    struct hk_writer:
        hk_record* records
        hk_ring* ring
        uint64_t n, mask, last
        uint32_t traces
        hk_clock clock
    uint64_t hk_clock_now(hk_clock*)
    void hk_put(hk_writer*, uint64_t ns, uint32_t kind, uint32_t seq, uint32_t what, uint64_t bytes, uint32_t peer,
                uint32_t step, uint32_t lane)
    hk_record* hk_put_call(hk_writer*, const uint32_t* named, uint64_t bytes)


cdef class Writer:              # of one ring
    cdef hk_writer writer
    cdef Recorder recorder
    cdef readonly int number
    cdef bint given_back
    cdef void give_back(self) noexcept


cdef class Recorder:
    cdef readonly int fd        # -1: it is private memory
    cdef readonly str refused
    cdef readonly Recorder copy     # a trace's, whose table has the same lines; None: there is no trace
    cdef void* base
    cdef size_t size, room      # bytes; records of a ring
    cdef size_t[HK_RINGS] touched   # bytes of each ring that are in memory already
    cdef dict lines             # line of the table -> its number
    cdef uint32_t[HK_RINGS] free    # rings that were let go, in a circle: the first is the oldest ...
    cdef uint32_t first_free, nfree     # ... of so many
    cdef uint32_t claims        # of rings, so far
    cdef void touch(self, uint32_t number, size_t end) noexcept
