/* The writing end: a piece goes into a slot, or is named where it lies in registered memory, for one reader or several. */
#ifndef HK_CUDA_IPC_WRITER_H
#define HK_CUDA_IPC_WRITER_H

#include "transports/cuda_ipc/protocol.h"

/* Before a slot is written: is this reader's stream through with it, or does ours wait for that?  1, 0 not yet, or -1. */
static inline int hk_c_reclaim(hk_c_pair *p, void *stream, unsigned slot) {
    if (!(p->due >> slot & 1)) return 1;
    const int rc = hk_mark_await(&p->peer_done[slot], p->common->device, stream);
    if (rc != 1) return rc;
    p->due &= ~(1u << slot);
    p->direct &= ~(1u << slot);
    return 1;
}

/* Has the peer mapped it?  If it has not heard of it, it does now. */
static inline int hk_c_can_read(hk_c_pair *p, int memory) {
    if (memory < 0) return 0;
    uint8_t *knows = &p->registered.knows[memory];
    if (*knows == HK_R_UNKNOWN) {
        const char *handle = p->common->registered.memory[memory].handle.reserved;
        for (uint16_t half = 0; half < 2; half++) {
            hk_c_packet k = {.kind = HK_C_MEMORY, .memory = (uint32_t)memory, .slot = half};
            memcpy(&k, handle + half * HK_R_HALF, HK_R_HALF);
            hk_c_post(p, k);
        }
        *knows = HK_R_OFFERED;
        hk_c_flush(p);
    }
    return *knows == HK_R_IS_MAPPED;
}

/* The packet goes to the reader, who has its slot from now on. */
static inline void hk_c_hand_over(hk_c_pair *p, hk_c_packet k) {
    p->busy |= 1u << k.slot;
    if (k.bytes == 0) p->empty |= 1u << k.slot;
    hk_c_post(p, k);
    hk_c_flush(p);
}

/* Name a piece that lies in registered memory to its reader.  1, 0 not yet, or -1. */
static inline int hk_c_name(hk_c_pair *p, const hk_call *call, uint64_t length, int memory, const void *src, size_t len) {
    const unsigned slot = p->next % HK_C_SLOTS;
    const uint64_t offset = (CUdeviceptr)(uintptr_t)src - p->common->registered.memory[memory].at;
    const int rc = hk_c_reclaim(p, call->stream, slot);
    if (rc != 1) return rc;
    if (hk_mark_set(&p->ready[slot], p->common->device, call->stream) != 0) return -1;
    p->next++;
    p->direct |= 1u << slot;
    hk_c_hand_over(p, (hk_c_packet){call->tag, length, len, offset, (uint32_t)memory, HK_C_DIRECT, (uint16_t)slot});
    return 1;
}

/* Put a piece into the slot whose turn it is.  1, 0 not yet, or -1. */
static inline int hk_c_put(hk_c_pair *p, const hk_call *call, uint64_t length, const void *src, size_t len) {
    hk_device *d = p->common->device;
    const unsigned slot = p->next % HK_C_SLOTS;
    if (len) {
        const int rc = hk_c_reclaim(p, call->stream, slot);
        if (rc != 1) return rc;
        if (hk_device_copy(d, call->stream, p->slots + slot * HK_C_SLOT_BYTES, src, len) != 0) return -1;
        if (hk_mark_set(&p->ready[slot], d, call->stream) != 0) return -1;
    }
    p->next++;
    hk_c_hand_over(p, (hk_c_packet){call->tag, length, len, .kind = HK_C_PIECE, .slot = (uint16_t)slot});
    return 1;
}

static long hk_c_send(hk_channel *ch, const hk_call *call, uint64_t length, uint64_t done, const void *src, size_t len) {
    hk_c_end *e = (hk_c_end *)ch;
    hk_c_pair *p = e->pair;
    hk_device *d = p->common->device;
    (void)done;
    hk_c_pump(p);
    if (p->ended) return p->ended;
    if (p->busy >> p->next % HK_C_SLOTS & 1) return HK_AGAIN;
    const int memory = hk_r_find(&p->common->registered, src, len), direct = hk_c_can_read(p, memory);
    if (!direct && len > HK_C_SLOT_BYTES) len = HK_C_SLOT_BYTES;
    const int entered = hk_device_enter(d);
    int rc = -1;
    if (entered >= 0)
        rc = direct ? hk_c_name(p, call, length, memory, src, len)
                    : hk_c_put(p, call, length, src, len);
    hk_device_leave(d, entered);
    return rc == 1 ? (long)len : rc == 0 ? HK_AGAIN : hk_c_refused(e);
}

/* Stream order keeps the caller's memory until it has been copied; but what was taken must also be told of, and what is
 * read in place must have been read, in stream order too. */
static int hk_c_settled(hk_channel *ch, const hk_call *call) {
    hk_c_end *e = (hk_c_end *)ch;
    hk_c_pair *p = e->pair;
    hk_device *d = p->common->device;
    int rc = 1;
    hk_c_pump(p);
    if (p->ended) return p->ended;
    if (p->out_head != p->out_tail || (p->direct & p->busy)) return 0;
    if (p->direct == 0) return 1;
    const int entered = hk_device_enter(d);
    for (unsigned slot = 0; slot < HK_C_SLOTS && rc == 1; slot++)
        if (p->direct >> slot & 1) rc = entered < 0 ? -1 : hk_c_reclaim(p, call->stream, slot);
    hk_device_leave(d, entered);
    return rc < 0 ? hk_c_refused(e) : rc;
}

/* Can all these peers read this memory in place, and have they all a free slot?  1; or 0. */
static inline int hk_c_all_can_read(hk_channel *const *chs, int n, int memory) {
    int can = 1;
    for (int j = 0; j < n; j++) {
        hk_c_pair *p = ((hk_c_end *)chs[j])->pair;
        can &= hk_c_can_read(p, memory) && !(p->busy >> p->next % HK_C_SLOTS & 1);
    }
    return can;
}

/* 1, 0 not yet: then nothing was named, or -1. */
static inline int hk_c_name_to_all(hk_channel *const *chs, int n, const hk_call *call, uint64_t length, int memory,
                                   const void *src, size_t len) {
    int rc = 1;
    for (int j = 0; j < n && rc == 1; j++) {
        hk_c_pair *p = ((hk_c_end *)chs[j])->pair;
        rc = hk_c_reclaim(p, call->stream, p->next % HK_C_SLOTS);
    }
    for (int j = 0; j < n && rc == 1; j++)
        rc = hk_c_name(((hk_c_end *)chs[j])->pair, call, length, memory, src, len);
    return rc;
}

/* Put a piece into the shared slot whose turn it is, for these readers.  1, 0 not yet, or -1. */
static inline int hk_c_put_for_all(hk_c_common *common, hk_channel *const *chs, int n, const hk_call *call, uint64_t length,
                                   const void *src, size_t len) {
    hk_device *d = common->device;
    const unsigned i = common->next_shared % HK_C_SHARED, slot = HK_C_SLOTS + i;
    int rc = 1;
    if (len) {
        for (int j = 0; j < common->size && rc == 1; j++)
            if (common->pair[j]) rc = hk_c_reclaim(common->pair[j], call->stream, slot);
        if (rc != 1) return rc;
        char *to = common->window + ((size_t)common->size * HK_C_SLOTS + i) * HK_C_SLOT_BYTES;
        if (hk_device_copy(d, call->stream, to, src, len) != 0) return -1;
        for (int j = 0; j < n; j++) {
            hk_mark *ready = &((hk_c_end *)chs[j])->pair->ready[slot];
            if (j > 0 && ready->word == 0) break; /* an event is all readers' */
            if (hk_mark_set(ready, d, call->stream) != 0) return -1;
        }
    }
    common->next_shared++;
    common->readers[i] = n;
    for (int j = 0; j < n; j++)
        hk_c_hand_over(((hk_c_end *)chs[j])->pair,
                       (hk_c_packet){call->tag, length, len, .kind = HK_C_PIECE, .slot = (uint16_t)slot});
    return 1;
}

/* Has everybody who was named the shared slot said that it is done? */
static inline int hk_c_is_free(hk_c_common *common) {
    const unsigned i = common->next_shared % HK_C_SHARED;
    for (int j = 0; j < common->size && common->readers[i]; j++) /* perhaps one who is not asked now: hear it */
        if (common->pair[j] && common->pair[j]->busy >> (HK_C_SLOTS + i) & 1) hk_c_pump(common->pair[j]);
    return common->readers[i] == 0;
}

static long hk_c_multicast(hk_channel *const *chs, int n, const hk_call *call, uint64_t length, uint64_t done,
                           const void *src, size_t len) {
    hk_c_end *e = (hk_c_end *)chs[0];
    hk_c_common *common = e->pair->common;
    hk_device *d = common->device;
    (void)done;
    for (int j = 0; j < n; j++) {
        hk_c_pump(((hk_c_end *)chs[j])->pair);
        if (((hk_c_end *)chs[j])->pair->ended) return ((hk_c_end *)chs[j])->pair->ended;
    }
    const int memory = hk_r_find(&common->registered, src, len), direct = hk_c_all_can_read(chs, n, memory);
    if (!direct && !hk_c_is_free(common)) return HK_AGAIN;
    if (!direct && len > HK_C_SLOT_BYTES) len = HK_C_SLOT_BYTES;
    const int entered = hk_device_enter(d);
    int rc = -1;
    if (entered >= 0)
        rc = direct ? hk_c_name_to_all(chs, n, call, length, memory, src, len)
                    : hk_c_put_for_all(common, chs, n, call, length, src, len);
    hk_device_leave(d, entered);
    return rc == 1 ? (long)len : rc == 0 ? HK_AGAIN : hk_c_refused(e);
}

static const hk_channel_ops hk_c_tx_ops = {.send = hk_c_send, .settled = hk_c_settled, .multicast = hk_c_multicast};

#endif
