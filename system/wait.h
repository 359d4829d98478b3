/* The waiting ladder: spin, then yield, then sleep on a word (futex) or on descriptors (poll).
 *
 * The wrong rung costs a thousand times the right one.  With a core for each rank the answer is there after a few
 * spins, and a futex wake takes hundreds of times longer; on a shared core, spinning starves the awaited rank until
 * the time slice ends, and a yield lets it run at once; beside a busy process or a computing thread it is the yield that
 * costs a slice, or several: the kernel puts who yields behind all others, and a sleeper that is woken before them.  So:
 * spin long only if every rank has a core; measure each yield, and after two slow ones go to sleep instead; and who waits
 * for works after it has computed does not yield at all, as its peers compute, too: it sleeps. */
#ifndef HK_WAIT_H
#define HK_WAIT_H

#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "system/atomics.h"
#include "system/clock.h"

typedef struct hk_ladder {
    uint32_t spins;     /* polls on the first rung at most: many if each local rank has a core, few otherwise */
    uint64_t yield_ns;  /* how long to stay on the second rung */
    uint64_t slow_ns;   /* a single yield longer than this: the core is wanted by a stranger */
    int32_t home;       /* this rank's own core, if each rank of its host has one; -1: none */
    /* What earlier waits taught: */
    uint32_t spins_now; /* polls on the first rung: halved by each wait in which another process got our core, doubled by others */
    uint32_t shared;    /* yields in which another process got our core, and sleeps, in one wait after the other */
    uint64_t stays;     /* ns, until when this rank does not go home again */
    uint64_t rest;      /* ... for so long each time */
    uint64_t behind;    /* ns, until when its waits leave out the second rung */
} hk_ladder;

typedef struct hk_wait {
    uint32_t polls;
    uint32_t slow;      /* slow yields met in this wait */
    uint32_t shared;    /* a yield let somebody else run */
    uint32_t behind;    /* it leaves out the second rung */
    uint32_t told, news; /* the caller's */
    uint32_t armed;     /* counted among the bell's sleepers, and has polled since */
    uint32_t seen;      /* the bell's count when it was armed */
    uint64_t since;     /* ns, when the spinning ended */
    uint64_t away;      /* ... for how long another process had our core in the latest step */
    uint64_t delay;     /* the kernel's count of such time, ns, at the latest sleep; 0: it was not asked */
    uint64_t (*asks)(void); /* the caller's: tells that count (run_delay.h), if `away` is wanted of sleeps, too */
} hk_wait;

static inline void hk_sleep_on(uint32_t *bell, uint32_t seen, uint64_t ns) {
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    syscall(SYS_futex, bell, FUTEX_WAIT, seen, &t, NULL, 0);
}

/* A bell is two words: [0] rung so many times, [1] how many sleep on it. */
static inline void hk_ring_bell(uint32_t *bell) {
    if (hk_relaxed32(bell + 1) == 0) return; /* may miss one that goes to sleep now: its sleep is short */
    hk_add32(bell, 1);
    syscall(SYS_futex, bell, FUTEX_WAKE, 64, NULL, NULL, 0);
}

static inline void hk_wait_end(hk_wait *w, uint32_t *bell) {
    if (bell && w->armed) hk_add32(bell + 1, (uint32_t)-1);
    w->armed = 0;
}

enum {
    HK_SPINS_MIN = 1,
    HK_SWITCH_NS = 1000 /* a yield that comes back sooner found nobody to run: 245 ns by `timeit os.sched_yield()` */
};

enum {
    HK_CPUS = 4096,                    /* cores among which `home` may be */
    HK_VAIN = 16,                      /* so many of those before we go home */
    HK_REST_NS = 10000000,             /* how long it stays then, at least */
    HK_REST_MOST_NS = 1000000000,      /* ... and at most, where a stranger keeps our home busy */
    HK_BEHIND = 32,                    /* who has computed leaves out yields for so many times as long ... */
    HK_BEHIND_MOST_NS = 640000000,     /* ... and no longer than this */
    HK_STAY_NS = 4000                  /* polls before a sleep without a yield: no slice is lost for what comes at once */
};

/* Two ranks that start on one core stay there for a while, although another core is idle (2 of 20 jobs, by
 * `python -m hocket.lab.starting.cores`): each yields to the other, so neither looks overloaded to the kernel.  So a rank that
 * yields in vain moves to the core that is its own for an instant, and may run anywhere after that.  So does one that often
 * sleeps behind computations: over TCP the kernel wakes it on the core of its peer, though both have one. */
static inline void hk_go_home(hk_ladder *l, uint64_t now) {
    enum { BITS = 8 * sizeof(long) };
    unsigned long all[HK_CPUS / BITS] = {0}, one[HK_CPUS / BITS] = {0};
    unsigned cpu;
    l->shared = 0;
    if (l->home < 0 || l->home >= HK_CPUS || now < l->stays) return;
    if (syscall(SYS_getcpu, &cpu, NULL, NULL) || cpu == (unsigned)l->home) return;
    if (l->rest < HK_REST_NS) l->rest = HK_REST_NS;
    l->stays = now + l->rest;
    one[l->home / BITS] = 1ul << l->home % BITS;
    if (syscall(SYS_sched_getaffinity, 0, sizeof all, all) < 0 || !(all[l->home / BITS] & one[l->home / BITS])) return;
    if (syscall(SYS_sched_setaffinity, 0, sizeof one, one) == 0) syscall(SYS_sched_setaffinity, 0, sizeof all, all);
}

/* A wait begins, `now`, after so many ns of computing (waiting/computed.h). */
static inline void hk_wait_behind(hk_ladder *l, uint64_t now, uint64_t computed) {
    uint64_t ns = computed < HK_BEHIND_MOST_NS / HK_BEHIND ? HK_BEHIND * computed : HK_BEHIND_MOST_NS;
    if (now + ns > l->behind) l->behind = now + ns;
}

/* `to` knows what `from` has learned: a wait with a ladder of its own is over. */
static inline void hk_ladder_learn(hk_ladder *to, const hk_ladder *from) {
    to->spins_now = from->spins_now;
    to->shared = from->shared;
    to->stays = from->stays;
    to->rest = from->rest;
    to->behind = from->behind;
}

/* Something moved: start again on the first rung, and learn from this wait.  Two ranks that a foreign process has
 * driven onto one core find each other by yielding at once, not after thousands of vain spins. */
static inline void hk_wait_reset(hk_wait *w, hk_ladder *l, uint32_t *bell) {
    hk_wait_end(w, bell);
    if (w->slow) {
        l->shared = 0;
        if (l->rest < HK_REST_MOST_NS) l->rest *= 2;
    } else if (w->polls && !w->shared) {
        l->shared = l->rest = 0;
    }
    if (w->shared) {
        l->spins_now = l->spins_now / 2 > HK_SPINS_MIN ? l->spins_now / 2 : HK_SPINS_MIN;
    } else if (w->polls && l->spins_now < l->spins) {
        l->spins_now = l->spins_now * 2 < l->spins ? l->spins_now * 2 : l->spins;
    }
    w->polls = w->slow = w->shared = w->behind = 0;
    w->since = w->away = w->delay = 0;
}

/* Is it still on the second rung, `waited` ns after it came there? */
static inline int hk_wait_yields(const hk_wait *w, const hk_ladder *l, uint64_t waited) {
    return !w->behind && waited < l->yield_ns && w->slow < 2;
}

/* Would the next step sleep? */
static inline int hk_wait_sleeps(const hk_wait *w, const hk_ladder *l) {
    if (!w->since) return 0;
    uint64_t waited = hk_now() - w->since;
    return !hk_wait_yields(w, l, waited) && !(w->behind && waited < HK_STAY_NS);
}

/* One step of waiting; returns the time (ns) on the slow rungs, 0 while spinning. */
static inline uint64_t hk_wait_step(hk_wait *w, hk_ladder *l, uint32_t *bell, struct pollfd *fds, int nfds) {
    if (w->polls < l->spins_now) {
        w->polls++;
        hk_pause();
        return 0;
    }
    uint64_t t0 = hk_now();
    if (w->since == 0) {
        w->since = t0;
        w->behind = t0 < l->behind;
    }
    uint64_t waited = t0 - w->since;
    if (hk_wait_yields(w, l, waited)) {
        sched_yield();
        uint64_t t1 = hk_now();
        if (t1 - t0 > l->slow_ns) w->slow++;
        w->away = t1 - t0 > HK_SWITCH_NS ? t1 - t0 : 0;
        if (w->away) {
            w->shared = 1;
            if (++l->shared >= HK_VAIN) hk_go_home(l, t1);
        }
        return t1 - w->since + 1;
    }
    if (w->behind && waited < HK_STAY_NS) {
        hk_pause();
        return 0;
    }
    if (w->asks && w->delay == 0) w->delay = w->asks();
    w->shared = 1;
    uint64_t nap = waited < 1000000000u ? 1000000u : 10000000u; /* 1 ms, after a second 10 ms */
    if (nfds > 0) {
        poll(fds, (nfds_t)nfds, bell ? 1 : (int)(nap / 1000000u));
    } else if (bell && !w->armed) {
        /* Announce ourselves, then let the caller poll once more: what came before is seen by that poll, and
         * a sender that comes later sees us and rings. */
        w->armed = 1;
        hk_add32(bell + 1, 1);
        w->seen = hk_load32(bell);
    } else if (bell) {
        hk_sleep_on(bell, w->seen, nap);
        hk_wait_end(w, bell);
    } else {
        struct timespec t = {0, 50000};
        nanosleep(&t, NULL);
    }
    if (w->behind && ++l->shared >= HK_VAIN) hk_go_home(l, hk_now());
    if (w->asks) {
        uint64_t delay = w->asks();
        w->away = delay - w->delay;
        w->delay = delay;
    }
    return hk_now() - w->since + 1;
}

#endif
