/* An MPI library that this process has loaded already, called without its headers and without the GIL.
 *
 * The functions are looked up in the library that mpi4py uses.  A handle (communicator, datatype, op) is an int in
 * MPICH and Intel MPI and a pointer in Open MPI and the standard ABI; here it is a uintptr_t, which the calling
 * conventions of Linux on x86-64 and aarch64 pass in the same place as either.  A request is a cell of 8
 * bytes of which the library uses what it needs.  A status is a larger cell that nobody reads: lengths travel in our
 * own headers.  Where an int is passed otherwise (extended by the caller, packed on the stack) this does not work: on
 * other machines Mpi refuses to be made.
 *
 * Must not know: channels, collectives. */
#ifndef HK_MPI_LIBRARY_H
#define HK_MPI_LIBRARY_H

#include <pthread.h>
#include <stdint.h>

#include "system/atomics.h"

enum { HK_MPI_STATUS_WORDS = 16 }; /* the largest known status is 40 bytes */

typedef int (*hk_mpi_send_fn)(const void *, int, uintptr_t, int, int, uintptr_t, void *);
typedef int (*hk_mpi_recv_fn)(void *, int, uintptr_t, int, int, uintptr_t, void *);

typedef struct hk_mpi {
    hk_mpi_send_fn issend;
    hk_mpi_recv_fn irecv, recv_init;
    int (*start)(void *);
    int (*test)(void *, int *, void *);
    int (*cancel)(void *);
    int (*request_free)(void *);
    int (*error_string)(int, char *, int *);
    uintptr_t byte, request_null, in_place;
    pthread_mutex_t *turns; /* MPI_THREAD_SERIALIZED: our threads call it one at a time; else NULL */
    uint32_t over;          /* MPI_Finalize has begun: nothing is called any more */
} hk_mpi;

typedef struct hk_mpi_request {
    uint64_t cell;
    int busy; /* under way: started, and not seen to have ended */
} hk_mpi_request;

static inline void hk_mpi_enter(hk_mpi *m) {
    if (m->turns) pthread_mutex_lock(m->turns);
}

static inline void hk_mpi_leave(hk_mpi *m) {
    if (m->turns) pthread_mutex_unlock(m->turns);
}

/* 1: it has ended (or was never started); 0: not yet; -1: MPI refused. */
static inline int hk_mpi_ended(hk_mpi *m, hk_mpi_request *q) {
    uint64_t status[HK_MPI_STATUS_WORDS];
    int flag = 0;
    if (!q->busy) return 1;
    hk_mpi_enter(m);
    const int rc = m->test(&q->cell, &flag, status);
    hk_mpi_leave(m);
    if (rc) return -1;
    if (flag) q->busy = 0;
    return flag;
}

#endif
