/* A progress marker that one process's stream sets and another process's stream waits for.
 *
 * Either by a word in the waiter's memory: the setter's stream writes the number of the turn, and the waiter's stream
 * waits until it is there (stream memory operations).  The waiter can end that by writing the word itself.
 * Or by an event that both have: the setter's stream records it, and the waiter's host polls until that is done.  No
 * stream waits for it, as only the setter could end that, and it may be gone; so the host waits for the GPU.
 *
 * Which of the two is settled for all marks of a communicator when its channels are made
 * (transports/cuda_ipc/proof.py tries them). */
#ifndef HK_MARK_H
#define HK_MARK_H

#include "system/cuda/device.h"

typedef struct hk_mark {
    CUevent event;    /* used if there is no word */
    CUdeviceptr word; /* as mapped in this process */
    uint32_t turn;    /* at the setter: how often it was set; at the waiter: which turn is expected */
} hk_mark;

/* Far ahead of every turn that may be waited for, and not yet behind it: turns are compared as numbers on a circle. */
#define HK_MARK_RELEASED (1u << 30)

/* All of the following in stream order: 0, or -1, if they do not say otherwise. */

static inline int hk_mark_write(hk_device *d, void *stream, CUdeviceptr word, uint32_t value) {
    const CUresult rc =
        d->cuda->cuStreamWriteValue32_v2((CUstream)stream, word, value, CU_STREAM_WRITE_VALUE_DEFAULT);
    return rc ? hk_device_refused(d, "writing a word", rc) : 0;
}

static inline int hk_mark_wait(hk_device *d, void *stream, CUdeviceptr word, uint32_t value) {
    const CUresult rc = d->cuda->cuStreamWaitValue32_v2((CUstream)stream, word, value, CU_STREAM_WAIT_VALUE_GEQ);
    return rc ? hk_device_refused(d, "waiting for a word", rc) : 0;
}

/* One turn further; another thread may be reading it, to end waits. */
static inline uint32_t hk_mark_next(hk_mark *m) {
    const uint32_t next = m->turn + 1;
    __atomic_store_n(&m->turn, next, __ATOMIC_RELAXED);
    return next;
}

static inline int hk_mark_set(hk_mark *m, hk_device *d, void *stream) {
    return m->word ? hk_mark_write(d, stream, m->word, hk_mark_next(m)) : hk_device_record(d, stream, m->event);
}

/* The setter's host has said that the mark was set once more. */
static inline void hk_mark_expect(hk_mark *m) { hk_mark_next(m); }

/* 1: what the stream is given from now on runs after the mark; 0: it is not set yet, so ask again; or -1. */
static inline int hk_mark_await(const hk_mark *m, hk_device *d, void *stream) {
    if (m->word) return hk_mark_wait(d, stream, m->word, m->turn) == 0 ? 1 : -1;
    return hk_device_is_past(d, m->event);
}

/* End streams' waits for the mark, by another stream. */
static inline int hk_mark_release(const hk_mark *m, hk_device *d, void *stream) {
    if (m->word == 0) return 0;
    return hk_mark_write(d, stream, m->word, __atomic_load_n(&m->turn, __ATOMIC_RELAXED) + HK_MARK_RELEASED);
}

#endif
