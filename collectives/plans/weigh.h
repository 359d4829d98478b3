/* Slots, or the sender's memory: which way the messages of a plan go, where either may be faster.
 *
 * Which one is depends on where the cores are, and a hypervisor moves them (bench/results/shared_memory.md).  Only the
 * time of whole calls tells: the work of copying alone does not, as each way disturbs what the caches hold for the rest.
 * So now and then all calls of a plan go by slots for a few times, and by reading for a few times.  Slots must go round
 * their circle first, since lines that were not used for a while are far away.  All ranks make the same calls of a plan,
 * and the count of calls alone says when they try.  So no time is a mixture of both ways.  Each rank then decides by its
 * own clock; where both ways take about the same, ranks may differ, and their messages go different ways. */
#ifndef HK_WEIGH_H
#define HK_WEIGH_H

#include <stdint.h>

enum {
    HK_WEIGH_FIRST = 1,  /* calls that are read before one counts */
    HK_WEIGH_TIMED = 4,  /* calls that count, but for the slowest of them: it may have been interrupted */
    HK_WEIGH_SOON = 2,   /* the first try ends after so many lengths of one ... */
    HK_WEIGH_APART = 64, /* ... and each next one after twice as many, up to these: 1 % of calls go the other way */
    HK_WEIGH_GAIN = 9    /* in tenths: what the other way must take at most */
};

/* The calls of a try that went one way. */
typedef struct hk_weigh_times {
    uint32_t count;
    uint64_t ns, slowest; /* of all, and of one */
} hk_weigh_times;

/* Of one plan on one rank. */
typedef struct hk_weigh {
    uint32_t warm;    /* calls that go by slots before one counts; 0: nothing is weighed, and the rest is not used */
    uint32_t reading; /* is reading the faster way? */
    uint32_t turn;    /* calls since the last try ended */
    uint32_t apart;   /* lengths of a try until the next one has ended; 0: no call yet */
    hk_weigh_times way[2]; /* by slots, and by reading */
} hk_weigh;

/* The calls of a try that go by slots; behind them are those that are read. */
static inline uint32_t hk_weigh_slots(const hk_weigh *w) { return w->warm + HK_WEIGH_TIMED; }

static inline uint32_t hk_weigh_length(const hk_weigh *w) { return hk_weigh_slots(w) + HK_WEIGH_FIRST + HK_WEIGH_TIMED; }

/* A try has ended.  Is the faster way another one now?  Calls that are still under way, or broke off, change nothing. */
static inline void hk_weigh_decide(hk_weigh *w) {
    const hk_weigh_times *usual = &w->way[w->reading], *other = &w->way[!w->reading];
    const int whole = usual->count == HK_WEIGH_TIMED && other->count == HK_WEIGH_TIMED;
    if (w->apart < HK_WEIGH_APART) w->apart *= 2;
    if (whole && 10 * (other->ns - other->slowest) < HK_WEIGH_GAIN * (usual->ns - usual->slowest)) w->reading = !w->reading;
}

/* Are the messages of the next call to be read?  `timed`: does this call count in a try? */
static inline int hk_weigh_next(hk_weigh *w, int *timed) {
    const uint32_t slots = hk_weigh_slots(w), length = hk_weigh_length(w);
    if (w->apart == 0) w->apart = HK_WEIGH_SOON;
    if (w->turn == w->apart * length) {
        hk_weigh_decide(w);
        w->turn = 0;
    }
    const uint32_t turn = w->turn++, begin = (w->apart - 1) * length, at = turn - begin;
    *timed = 0;
    if (turn < begin) return (int)w->reading;
    if (at == 0) w->way[0] = w->way[1] = (hk_weigh_times){0, 0, 0};
    const int read = at >= slots;
    *timed = at + HK_WEIGH_TIMED >= (read ? length : slots);
    return read;
}

/* One that counts has taken so long. */
static inline void hk_weigh_learn(hk_weigh *w, int read, uint64_t ns) {
    hk_weigh_times *way = &w->way[read];
    way->count++;
    way->ns += ns;
    if (ns > way->slowest) way->slowest = ns;
}

#endif
