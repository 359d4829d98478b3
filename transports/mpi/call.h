/* One collective of an MPI library, ready to be called: a function and its arguments, of which two are filled in late.
 *
 * Every argument of every collective (a buffer, a count, counts, a handle, a root) is a word that fits a register, so
 * one struct does for all of them; see library.h for why an int may be passed so. */
#ifndef HK_MPI_CALL_H
#define HK_MPI_CALL_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transports/channel.h"
#include "transports/library.h"
#include "transports/mpi/library.h"

enum { HK_MPI_WORDS = 10 };

typedef struct hk_mpi_call {
    hk_library base;
    hk_mpi *mpi;
    uintptr_t blocking, starting; /* MPI_Allreduce and MPI_Iallreduce */
    uintptr_t word[HK_MPI_WORDS];
    int words;
    int in, out;         /* which words are the caller's buffers; -1: none */
    size_t given, taken; /* bytes of them, where they may overlap: then the result goes to `spare` first; else 0 */
    char *spare;
    void *late;          /* where the result goes from `spare`, if it does */
    hk_mpi_request request;
} hk_mpi_call;

static inline int hk_mpi_apply(uintptr_t f, int n, const uintptr_t *a) {
    typedef uintptr_t u;
    switch (n) {
    case 1: return ((int (*)(u))f)(a[0]);
    case 2: return ((int (*)(u, u))f)(a[0], a[1]);
    case 5: return ((int (*)(u, u, u, u, u))f)(a[0], a[1], a[2], a[3], a[4]);
    case 6: return ((int (*)(u, u, u, u, u, u))f)(a[0], a[1], a[2], a[3], a[4], a[5]);
    case 7: return ((int (*)(u, u, u, u, u, u, u))f)(a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
    case 8: return ((int (*)(u, u, u, u, u, u, u, u))f)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
    case 9: return ((int (*)(u, u, u, u, u, u, u, u, u))f)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8]);
    case 10:
        return ((int (*)(u, u, u, u, u, u, u, u, u, u))f)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9]);
    default: return -1;
    }
}

static inline int hk_mpi_call_refused(hk_mpi_call *c, int code) {
    char text[512] = ""; /* MPI_MAX_ERROR_STRING is 256 to 512 */
    int length = 0;
    c->mpi->error_string(code, text, &length);
    snprintf(c->base.why, sizeof c->base.why, "%.500s", length ? text : "MPI failed and does not say why");
    return HK_FAULT;
}

/* The words, with this call's buffers. */
static inline int hk_mpi_call_fill(hk_mpi_call *c, void *in, void *out, uintptr_t *word) {
    if (hk_load32(&c->mpi->over)) {
        snprintf(c->base.why, sizeof c->base.why, "MPI is finalized");
        return HK_FAULT;
    }
    c->late = NULL;
    if (c->given && (char *)out < (char *)in + c->given && (char *)in < (char *)out + c->taken) {
        if (c->spare == NULL && (c->spare = (char *)malloc(c->taken)) == NULL) {
            snprintf(c->base.why, sizeof c->base.why, "no memory for %zu bytes", c->taken);
            return HK_FAULT;
        }
        c->late = out;
        out = c->spare;
    }
    memcpy(word, c->word, sizeof c->word);
    if (c->in >= 0) word[c->in] = (uintptr_t)in;
    if (c->out >= 0) word[c->out] = (uintptr_t)out;
    return 0;
}

static inline void hk_mpi_call_deliver(hk_mpi_call *c) {
    if (c->late) memcpy(c->late, c->spare, c->taken);
    c->late = NULL;
}

static int hk_mpi_call_now(hk_library *l, void *in, void *out) {
    hk_mpi_call *c = (hk_mpi_call *)l;
    uintptr_t word[HK_MPI_WORDS];
    if (hk_mpi_call_fill(c, in, out, word)) return HK_FAULT;
    const int rc = hk_mpi_apply(c->blocking, c->words, word);
    if (rc) return hk_mpi_call_refused(c, rc);
    hk_mpi_call_deliver(c);
    return 0;
}

static int hk_mpi_call_start(hk_library *l, void *in, void *out) {
    hk_mpi_call *c = (hk_mpi_call *)l;
    uintptr_t word[HK_MPI_WORDS];
    if (hk_mpi_call_fill(c, in, out, word)) return HK_FAULT;
    c->request.cell = c->mpi->request_null;
    word[c->words] = (uintptr_t)&c->request.cell;
    hk_mpi_enter(c->mpi);
    const int rc = hk_mpi_apply(c->starting, c->words + 1, word);
    hk_mpi_leave(c->mpi);
    if (rc) return hk_mpi_call_refused(c, rc);
    c->request.busy = 1;
    return 0;
}

static int hk_mpi_call_test(hk_library *l) {
    hk_mpi_call *c = (hk_mpi_call *)l;
    const int rc = hk_load32(&c->mpi->over) ? -1 : hk_mpi_ended(c->mpi, &c->request);
    if (rc < 0) return hk_mpi_call_refused(c, 0);
    if (rc) hk_mpi_call_deliver(c);
    return rc;
}

static inline void hk_mpi_call_init(hk_mpi_call *c) {
    c->base.call = c->mpi->turns ? NULL : hk_mpi_call_now; /* who waits in MPI would keep the others' turn */
    c->base.start = hk_mpi_call_start;
    c->base.test = hk_mpi_call_test;
    c->in = c->out = -1;
}

#endif
