/* A GPU as this process uses it: the driver, a context, and what the driver refused last. */
#ifndef HK_DEVICE_H
#define HK_DEVICE_H

#include "system/cuda/driver.h"

typedef struct hk_device {
    const hk_cuda *cuda;
    CUcontext context;
    int ordinal;
    char words[160]; /* what it refused last, for people */
} hk_device;

/* Remember what was refused.  Returns -1. */
static inline int hk_device_refused(hk_device *d, const char *what, CUresult rc) {
    const char *text = NULL;
    d->cuda->cuGetErrorString(rc, &text);
    snprintf(d->words, sizeof d->words, "%s: %s (CUDA error %d)", what, text ? text : "unknown", (int)rc);
    return -1;
}

/* Make the device's context this thread's.  1: it was not before; 0: it was; or -1.  `leave` takes the answer.
 * hocket's own threads have no context. */
static inline int hk_device_enter(hk_device *d) {
    CUcontext now = NULL;
    d->cuda->cuCtxGetCurrent(&now);
    if (now == d->context) return 0;
    const CUresult rc = d->cuda->cuCtxPushCurrent_v2(d->context);
    return rc ? hk_device_refused(d, "entering its context", rc) : 1;
}

static inline void hk_device_leave(hk_device *d, int entered) {
    CUcontext none;
    if (entered == 1) d->cuda->cuCtxPopCurrent_v2(&none);
}

/* All of the following in stream order: 0, or -1. */

static inline int hk_device_copy(hk_device *d, void *stream, const void *to, const void *from, size_t n) {
    const CUresult rc =
        d->cuda->cuMemcpyAsync((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, n, (CUstream)stream);
    return rc ? hk_device_refused(d, "a copy", rc) : 0;
}

static inline int hk_device_zero(hk_device *d, void *stream, void *to, size_t n) {
    const CUresult rc = d->cuda->cuMemsetD8Async((CUdeviceptr)(uintptr_t)to, 0, n, (CUstream)stream);
    return rc ? hk_device_refused(d, "filling memory", rc) : 0;
}

static inline int hk_device_record(hk_device *d, void *stream, CUevent event) {
    const CUresult rc = d->cuda->cuEventRecord(event, (CUstream)stream);
    return rc ? hk_device_refused(d, "recording an event", rc) : 0;
}

/* Let the stream wait for what is now the latest record of `event`. */
static inline int hk_device_await(hk_device *d, void *stream, CUevent event) {
    const CUresult rc = d->cuda->cuStreamWaitEvent((CUstream)stream, event, 0);
    return rc ? hk_device_refused(d, "waiting for an event", rc) : 0;
}

/* Has the latest record of `event` been carried out, which may be another process's?  1, 0 or -1. */
static inline int hk_device_is_past(hk_device *d, CUevent event) {
    const CUresult rc = d->cuda->cuEventQuery(event);
    if (rc == CUDA_ERROR_NOT_READY) return 0;
    return rc ? hk_device_refused(d, "asking for an event", rc) : 1;
}

#endif
