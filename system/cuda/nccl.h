/* A collective of NCCL's, called where a kernel would be launched.  nccl.py opens the library, and makes the
 * communicator, whose calls do not block: one that NCCL goes on with in its own threads is looked at here.
 *
 * All its functions take (in, out, count, type, op and root where they have them, communicator, stream): each a word
 * that fits a register, as in transports/mpi/library.h. */
#ifndef HK_NCCL_H
#define HK_NCCL_H

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "system/atomics.h"
#include "system/clock.h"

enum { HK_NCCL_WORDS = 8, HK_NCCL_IN_PROGRESS = 7, HK_NCCL_NAP = 20000 };

typedef struct hk_nccl { /* nccl.py fills it, and has the same */
    uint64_t comm;       /* 0: it is gone, or about to be */
    uint64_t inside;     /* a thread may use it */
    int (*state)(uint64_t comm, int *state);
    const char *(*words)(int state);
    const char *(*last)(uint64_t comm);
} hk_nccl;

typedef struct hk_nccl_call {
    uintptr_t function;
    uint64_t word[HK_NCCL_WORDS];
    int words;
} hk_nccl_call;

static inline int hk_nccl_apply(const hk_nccl_call *c, const uint64_t *a) {
    typedef uint64_t u;
    const uintptr_t f = c->function;
    switch (c->words) {
    case 6: return ((int (*)(u, u, u, u, u, u))f)(a[0], a[1], a[2], a[3], a[4], a[5]);
    case 7: return ((int (*)(u, u, u, u, u, u, u))f)(a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
    default: return ((int (*)(u, u, u, u, u, u, u, u))f)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
    }
}

/* The state that NCCL has come to; IN_PROGRESS: it is gone meanwhile, or `until` (ns, 0: never) has come. */
static inline int hk_nccl_settled(hk_nccl *n, uint64_t comm, uint64_t until) {
    const struct timespec nap = {0, HK_NCCL_NAP};
    int state = HK_NCCL_IN_PROGRESS, rc;
    while (hk_load64(&n->comm)) {
        if ((rc = n->state(comm, &state)) != 0) return rc;
        if (state != HK_NCCL_IN_PROGRESS || (until && hk_now() > until)) break;
        nanosleep(&nap, NULL);
    }
    return state;
}

/* Issue it.  0, or -1 with the reason in `why`.  `limit`: ns, 0: none. */
static inline int hk_nccl_issue(hk_nccl *n, const hk_nccl_call *c, void *in, void *out, void *stream, uint64_t limit,
                                char *why, size_t room) {
    const uint64_t until = limit ? hk_now() + limit : 0;
    uint64_t word[HK_NCCL_WORDS];
    memcpy(word, c->word, sizeof word);
    word[0] = (uintptr_t)in, word[1] = (uintptr_t)out, word[c->words - 1] = (uintptr_t)stream;
    hk_store64(&n->inside, 1);
    hk_fence();
    const uint64_t comm = word[c->words - 2] = hk_load64(&n->comm);
    int rc = comm ? hk_nccl_settled(n, comm, until) : HK_NCCL_IN_PROGRESS;
    if (rc == 0 && (rc = hk_nccl_apply(c, word)) == HK_NCCL_IN_PROGRESS) rc = hk_nccl_settled(n, comm, until);
    if (rc) {
        const int gone = hk_load64(&n->comm) == 0;
        const char *last = gone ? NULL : n->last(comm);
        snprintf(why, room, "NCCL: %s (%s)", gone ? "aborted" : n->words(rc), last && *last ? last : "it says no more");
    }
    hk_store64(&n->inside, 0);
    return rc ? -1 : 0;
}

#endif
