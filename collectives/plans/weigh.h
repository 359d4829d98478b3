/* Slots, or the arrays' own memory, and who copies: which way the messages of a plan go, where any may be the fastest.
 *
 * Which one is depends on where the cores are, and a hypervisor moves them (bench/results/shared_memory.md).  Only the
 * time of whole calls tells: the work of copying alone does not, as each way disturbs what the caches hold for the rest.
 * So now and then all calls of a plan go each way for a few times.  Slots must go round their circle first, since lines
 * that were not used for a while are far away.  All ranks make the same calls of a plan, and the count of calls alone
 * says when they try.  So no time is a mixture of ways.  A call takes as long as it takes the slowest of its ranks: who
 * came last sees its end alone.  So each rank's messages of the next call say how long this one took there, and where all
 * hear from all, they decide alike. */
#ifndef HK_WEIGH_H
#define HK_WEIGH_H

#include <stdint.h>

enum {
    HK_WEIGH_WAYS = 4,   /* at most */
    HK_WEIGH_FIRST = 1,  /* calls of a way that does not use slots before one counts */
    HK_WEIGH_TIMED = 4,  /* calls that count, but for the slowest of them: it may have been interrupted */
    HK_WEIGH_SOON = 2,   /* the first try ends after so many lengths of one ... */
    HK_WEIGH_APART = 64, /* ... and each next one after twice as many, up to these: 1 % of calls go the other ways */
    HK_WEIGH_GAIN = 19   /* in twentieths: what another way must take at most */
};

/* The calls of a try that went one way. */
typedef struct hk_weigh_times {
    uint32_t count;
    uint64_t ns, slowest; /* of all, and of one */
    uint64_t before; /* what counted in the try before; 0: there was none */
} hk_weigh_times;

/* Of one plan on one rank. */
typedef struct hk_weigh {
    uint32_t warm;  /* calls of the first way, slots if they are one, before one counts; 0: nothing is weighed, nor the rest used */
    uint32_t count; /* ways */
    int way[HK_WEIGH_WAYS]; /* what each is called */
    uint32_t best;  /* the fastest, as was found */
    uint32_t alone; /* does nothing come to this rank?  Then time counts from the call's begin */
    uint32_t turn;  /* calls since the last try ended */
    uint32_t apart; /* lengths of a try until the next one has ended; 0: no call yet */
    uint32_t went, took, longest; /* the latest call that counts: its way; ns here, or 0: told already; and of other ranks */
    hk_weigh_times times[HK_WEIGH_WAYS];
} hk_weigh;

/* The calls of a try that go the first way; behind them are those of the other ways, one after the other. */
static inline uint32_t hk_weigh_first_way(const hk_weigh *w) { return w->warm + HK_WEIGH_TIMED; }

static inline uint32_t hk_weigh_length(const hk_weigh *w) {
    return hk_weigh_first_way(w) + (w->count - 1) * (HK_WEIGH_FIRST + HK_WEIGH_TIMED);
}

/* A try has ended.  Is another way the fastest now?  Calls that are still under way, or broke off, change nothing.  What
 * interrupts a rank for a millisecond makes all calls of a way slow; so the better of two tries counts. */
static inline void hk_weigh_decide(hk_weigh *w) {
    uint64_t takes[HK_WEIGH_WAYS];
    if (w->apart < HK_WEIGH_APART) w->apart *= 2;
    for (uint32_t i = 0; i < w->count; i++)
        if (w->times[i].count != HK_WEIGH_TIMED) return;
    for (uint32_t i = 0; i < w->count; i++) {
        const uint64_t now = w->times[i].ns - w->times[i].slowest, before = w->times[i].before;
        takes[i] = before && before < now ? before : now;
        w->times[i].before = now;
    }
    uint64_t least = HK_WEIGH_GAIN * takes[w->best];
    for (uint32_t i = 0; i < w->count; i++)
        if (20 * takes[i] < least) w->best = i, least = 20 * takes[i];
}

/* By which of the ways do the messages of the next call go?  `timed`: does this call count in a try?  Behind a try is one
 * call that does not: its messages tell of the last one. */
static inline uint32_t hk_weigh_next(hk_weigh *w, int *timed) {
    const uint32_t first = hk_weigh_first_way(w), length = hk_weigh_length(w);
    if (w->apart == 0) w->apart = HK_WEIGH_SOON;
    if (w->turn == w->apart * length + 1) {
        hk_weigh_decide(w);
        w->turn = 0;
    }
    const uint32_t turn = w->turn++, begin = (w->apart - 1) * length, at = turn - begin;
    *timed = 0;
    if (turn < begin || at == length) return w->best;
    if (at == 0)
        for (uint32_t i = 0; i < w->count; i++) w->times[i] = (hk_weigh_times){0, 0, 0, w->times[i].before};
    if (at < first) {
        *timed = at >= w->warm;
        return 0;
    }
    const uint32_t behind = at - first, each = HK_WEIGH_FIRST + HK_WEIGH_TIMED;
    *timed = behind % each >= HK_WEIGH_FIRST;
    return 1 + behind / each;
}

/* Another rank says how long the call before this one took there. */
static inline void hk_weigh_hears(hk_weigh *w, uint32_t took) {
    if (took > w->longest) w->longest = took;
}

/* A call has ended.  `told`: its messages said what `took` says; `ns`: of one that counts, its own time; else 0. */
static inline void hk_weigh_done(hk_weigh *w, int told, uint32_t way, uint64_t ns) {
    if (told) {
        hk_weigh_times *t = &w->times[w->went];
        const uint64_t longest = w->longest > w->took ? w->longest : w->took;
        t->count++;
        t->ns += longest;
        if (longest > t->slowest) t->slowest = longest;
    }
    w->went = way;
    w->took = ns < UINT32_MAX ? (uint32_t)ns : UINT32_MAX;
    w->longest = 0;
}

#endif
