/* Filling a slot: through the caches, or past them.
 *
 * Cores that share a cache hand a slot over best through it.  Cores that share none (two sockets, two clusters of one)
 * do not: the writer first has to take each line from the other core's cache.  There, stores past the caches are two to
 * four times faster, as the reader fetches the lines from memory.  And a hypervisor moves cores between the two.  So
 * the faster way is measured while bytes move: docs/performance.md has the times of both.
 *
 * A slot's cost depends on where its lines are, which the last filling has decided.  So a try fills one slot the other
 * way twice, a round of the circle apart, and only the second time counts.  After a change nothing counts for a round. */
#ifndef HK_SHM_FILL_H
#define HK_SHM_FILL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <x86intrin.h>
#endif

#include "system/copy.h"

enum {
    HK_FILL_TIMED = 8192, /* a shorter piece goes through the caches, and is not timed */
    HK_FILL_TRY = 256,    /* after so many slots one is filled the other way */
    HK_FILL_LOST = 4096,  /* no round of a circle has more slots: the place that is waited for is gone */
    HK_FILL_ALONE = 8,    /* one of so many slots is filled alone where another copy is wanted, too */
    HK_FILL_GAIN = 3,     /* in halves: the caches must take 1.5 times as long (shared_memory.md) */
    HK_FILL_LATE = 4      /* a slot that takes longer than so many times the usual was interrupted: no more than that counts */
};

/* What a writer does until the place that it marked comes round again. */
enum { HK_FILL_USUAL, HK_FILL_TRIES, HK_FILL_SETTLES };

/* What one writer has found out.  Costs are cycles for 1 KiB, 0: not known yet. */
typedef struct hk_fill {
    uintptr_t mark;       /* a byte of the slot that the phase waits for */
    uint32_t turn, phase; /* slots since the phase began */
    uint32_t past;        /* is the faster way past the caches? */
    uint32_t cost[2];     /* of slots through the caches, and past them */
} hk_fill;

/* How one slot is filled, and whether its cost counts. */
typedef struct hk_fill_how {
    uint32_t past, counts;
} hk_fill_how;

static inline void hk_fill_begin(hk_fill *f, uint32_t phase, const char *mark) {
    f->phase = phase;
    f->mark = (uintptr_t)mark;
    f->turn = 0;
}

/* The next slot. */
static inline hk_fill_how hk_fill_next(hk_fill *f, const char *slot, size_t len) {
    const uint32_t phase = f->phase;
    f->turn++;
    if (phase == HK_FILL_USUAL) {
        if (f->turn < HK_FILL_TRY) return (hk_fill_how){f->past, 1};
        hk_fill_begin(f, HK_FILL_TRIES, slot);
        return (hk_fill_how){!f->past, 0};
    }
    const int round = f->mark - (uintptr_t)slot < len;
    if (round || f->turn > HK_FILL_LOST) hk_fill_begin(f, HK_FILL_USUAL, NULL);
    if (phase == HK_FILL_TRIES) return (hk_fill_how){f->past ^ (uint32_t)round, 1};
    return (hk_fill_how){f->past, 0};
}

/* A slot has taken `cost`.  The usual way's cost is smoothed.  The other way's needs no smoothing: an
 * interruption can only make it look worse. */
static inline void hk_fill_learn(hk_fill *f, const char *slot, uint32_t past, uint32_t cost) {
    const uint32_t known = f->cost[past];
    if (past == f->past && known) {
        if (cost > HK_FILL_LATE * known) cost = HK_FILL_LATE * known;
        cost = (3 * known + cost) / 4;
    }
    f->cost[past] = cost;
    const uint32_t better = f->cost[1] && 2 * f->cost[0] > HK_FILL_GAIN * f->cost[1];
    if (better == f->past) return;
    f->past = better;
    hk_fill_begin(f, HK_FILL_SETTLES, slot);
}

/* Copy into a slot, and to `keep` if that is not NULL.  `warm`: it has been written before, so its pages are there.
 * Most are filled together with what is kept, through the caches, which reads `src` once; these do not count. */
static inline void hk_fill_slot(hk_fill *f, char *slot, char *keep, const char *src, size_t len, int warm) {
#ifdef __SSE2__
    if (warm && len >= HK_FILL_TIMED) {
        const hk_fill_how how = hk_fill_next(f, slot, len);
        if (!keep || how.past || f->phase != HK_FILL_USUAL || f->turn % HK_FILL_ALONE == 0) {
            const uint64_t begin = __rdtsc();
            how.past ? hk_copy_past(slot, src, len) : hk_copy(slot, src, len);
            const uint64_t each = ((__rdtsc() - begin) << 10) / len;
            if (how.counts) hk_fill_learn(f, slot, how.past, each < UINT32_MAX / 8 ? (uint32_t)each + 1 : UINT32_MAX / 8);
            if (keep) hk_copy(keep, src, len);
            return;
        }
    }
#endif
    (void)f;
    (void)warm;
    keep ? hk_copy_twice(slot, keep, src, len) : hk_copy(slot, src, len);
}

#endif
