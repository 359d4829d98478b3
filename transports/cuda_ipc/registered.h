/* Registered memory: allocations that stay, which peers map and read where they are.
 *
 * Ours are in a table of the rank, by number; a peer hears of one with the first message from it, and says whether it
 * has mapped it.  What is said of a peer's is not believed: how large it is, the driver says. */
#ifndef HK_REGISTERED_H
#define HK_REGISTERED_H

#include <string.h>

#include "system/atomics.h"
#include "system/cuda/device.h"

enum { HK_R_MOST = 64, HK_R_HALF = 32 /* bytes of a handle */ };
enum { HK_R_UNKNOWN, HK_R_OFFERED, HK_R_IS_MAPPED, HK_R_REFUSED }; /* what a peer knows of ours */
#define HK_R_FROM ((size_t)256 << 10) /* shorter pieces are copied: whoever sends them need not wait to settle */
_Static_assert(HK_R_MOST <= 64, "bits of a word");

/* A whole allocation. */
typedef struct hk_r_memory {
    CUdeviceptr at;
    size_t size;
    CUipcMemHandle handle;
} hk_r_memory;

typedef struct hk_r_ours {
    hk_r_memory memory[HK_R_MOST];
    uint32_t count; /* stored after the last one is there */
} hk_r_ours;

typedef struct hk_r_peer {
    uint8_t knows[HK_R_MOST];
    CUdeviceptr at[HK_R_MOST]; /* the peer's, as mapped here; 0: it is not */
    size_t size[HK_R_MOST];
    CUipcMemHandle handle; /* the first half has come */
    uint64_t heard;        /* bits: both have */
} hk_r_peer;

/* Ours that these bytes lie in, or -1. */
static inline int hk_r_find(const hk_r_ours *ours, const void *src, size_t len) {
    const CUdeviceptr at = (CUdeviceptr)(uintptr_t)src;
    const uint32_t n = len < HK_R_FROM ? 0 : hk_load32(&ours->count);
    for (uint32_t i = 0; i < n; i++) {
        const hk_r_memory *m = &ours->memory[i];
        if (at - m->at < m->size && len <= m->size - (at - m->at)) return (int)i;
    }
    return -1;
}

/* Do so many bytes at this place lie in the peer's memory of that number, as mapped here? */
static inline int hk_r_is_there(const hk_r_peer *r, uint32_t number, uint64_t offset, uint64_t n) {
    return number < HK_R_MOST && offset <= r->size[number] && n <= r->size[number] - offset;
}

/* Half of a handle has come, HK_R_HALF bytes.  After the second the memory is mapped: 1, or 0 if that cannot be; else
 * -1. */
static inline int hk_r_hear(hk_r_peer *r, hk_device *d, uint32_t number, int half, const void *bytes) {
    memcpy(r->handle.reserved + half * HK_R_HALF, bytes, HK_R_HALF);
    if (half == 0) return -1;
    r->heard |= 1ull << number;
    const int entered = hk_device_enter(d);
    CUresult rc = CUDA_ERROR_UNKNOWN;
    if (entered >= 0)
        rc = d->cuda->cuIpcOpenMemHandle_v2(&r->at[number], r->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (rc == CUDA_SUCCESS) rc = d->cuda->cuMemGetAddressRange_v2(NULL, &r->size[number], r->at[number]);
    if (rc) r->size[number] = 0;
    hk_device_leave(d, entered);
    return rc == CUDA_SUCCESS;
}

#endif
