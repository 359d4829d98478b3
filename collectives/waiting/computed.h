/* For how long has this thread computed since its latest wait?
 *
 * CPU time tells it, as a thread that was preempted between two messages has not computed.  That clock is a system call: it is
 * read after a wait that left the first rung (system/wait.h), and not twice in HK_RECENT_NS.  What lies between two readings is
 * shared among the calls that began there, so that a thread which only communicates has not computed, either. */
#ifndef HK_COMPUTED_H
#define HK_COMPUTED_H

#include <stdint.h>
#include <time.h>

#include "system/clock.h"

enum {
    HK_COMPUTES_NS = 500000, /* less is no computing */
    HK_RECENT_NS = 50000
};

static __thread struct {
    uint64_t at, used; /* ns: when the clock was read, and the thread's CPU time then; 0: never */
    uint32_t begun;
} hk_left;

static inline uint64_t hk_thread_time(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* A wait that left the first rung ends, after so many calls that have `begun`. */
static inline void hk_wait_left(uint32_t begun) {
    uint64_t now = hk_now();
    if (now - hk_left.at < HK_RECENT_NS) return;
    hk_left.at = now;
    hk_left.used = hk_thread_time();
    hk_left.begun = begun;
}

/* A wait begins, as one more call: for how long has its thread computed, ns?  0: it has not. */
static inline uint64_t hk_computed(uint64_t now, uint32_t begun) {
    if (hk_left.at == 0 || now - hk_left.at < HK_COMPUTES_NS) return 0;
    uint64_t used = hk_thread_time();
    if (used < hk_left.used) return 0;                /* a forked child's begins anew */
    int32_t calls = (int32_t)(begun - hk_left.begun); /* two threads that count at once may set it back */
    uint64_t each = (used - hk_left.used) / (calls < 1 ? 1 : (uint64_t)calls);
    return each < HK_COMPUTES_NS ? 0 : each;
}

#endif
