/* Two clocks: the system's, and one for a trace that costs a third of it.
 *
 * A traced call reads the time ten times and more, and where the system's clock takes 30 to 60 ns that is a tenth of a
 * short call (python -m hocket.lab.observe.recorder).  hk_clock counts the core's own ticks from its latest reading of
 * CLOCK_MONOTONIC on, for a millisecond at most, and measures the length of a tick between two such readings.  Its error
 * is some tens of ns, and what the system's clock was slewed by in that millisecond (0.5 us at most).
 * It is used where the kernel itself keeps time by that counter: only there are those of all cores known to agree. */
#ifndef HK_CLOCK_H
#define HK_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t hk_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Who has one zeroes it; one thread at a time uses it. */
typedef struct hk_clock {
    uint32_t counts;    /* may it count ticks? */
    uint32_t scale;     /* ns of a tick, times 2^31; 0: not known yet */
    uint64_t ticks, ns; /* read together: the latest time */
    uint64_t from_ticks, from_ns; /* ... and at least a millisecond before, to measure a tick */
    uint64_t latest;    /* what it returned last: it never goes back */
} hk_clock;

#ifdef __x86_64__

enum {
    HK_TICKS_MOST = 1 << 21,            /* counted from one reading: below a millisecond at 2 GHz and more */
    HK_TICKS_TOGETHER = 1 << 12,        /* two readings with more between them were not made together */
    HK_MEASURE_NS = 1000000,
    HK_MEASURE_AGAIN_NS = 1000000000
};

static inline uint64_t hk_ticks(void) { return __builtin_ia32_rdtsc(); }

/* Reads the system's clock, and learns from it. */
static __attribute__((noinline)) uint64_t hk_clock_read(hk_clock *c) {
    uint64_t before, ticks, ns, passed;
    if (!c->counts) return hk_now();
    before = hk_ticks();
    ns = hk_now();
    ticks = hk_ticks();
    if (ticks - before > HK_TICKS_TOGETHER) return ns;      /* another process had the core between them */
    passed = ns - c->from_ns;
    if (passed >= HK_MEASURE_NS) {
        c->scale = 0;
        if (passed < 2 * (uint64_t)HK_MEASURE_AGAIN_NS && ticks - c->from_ticks > passed / 2)
            c->scale = (uint32_t)((passed << 31) / (ticks - c->from_ticks));
        if (passed >= HK_MEASURE_AGAIN_NS) {
            c->from_ticks = ticks;
            c->from_ns = ns;
        }
    }
    c->ticks = ticks;
    c->ns = ns;
    return ns;
}

/* CLOCK_MONOTONIC, ns, nearly. */
static inline uint64_t hk_clock_now(hk_clock *c) {
    uint64_t passed = hk_ticks() - c->ticks, ns;
    ns = c->scale && passed < HK_TICKS_MOST ? c->ns + (passed * c->scale >> 31) : hk_clock_read(c);
    if (ns > c->latest) c->latest = ns;
    return c->latest;
}

#else

static inline uint64_t hk_clock_now(hk_clock *c) {
    (void)c;
    return hk_now();
}

#endif
#endif
