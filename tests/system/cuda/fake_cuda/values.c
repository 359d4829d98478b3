/* What streams carry out: copies, fills, waiting for a word and writing one, calls of the host. */
#include "fake.h"

static void copy(struct op *o) { memmove(o->to, o->from, o->size); }

/* The host's memory is read and written when the copy is carried out, however short it is and wherever it lies: CUDA
 * may do that earlier, and nobody may rely on it. */
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
    ENTER(IN_CONTEXT);
    struct CUstream_st *s = stream_of(stream);
    if (s == NULL) return leave(CUDA_ERROR_INVALID_HANDLE);
    if (size == 0) return leave(CUDA_SUCCESS);
    char *const t = to ? reach(to, size) : NULL, *const f = from ? reach(from, size) : NULL;
    if (t == NULL || f == NULL) return leave(CUDA_ERROR_INVALID_VALUE);
    struct op *o = submit(s, copy);
    o->to = t, o->from = f, o->size = size;
    is.copies++, is.copied += (long)size;
    const struct range *target = range_of(to), *source = range_of(from);
    if (source && source->kind != HOST && (target == NULL || target->kind == HOST)) is.to_host += (long)size;
    return leave(CUDA_SUCCESS);
}

static void fill(struct op *o) { memset(o->to, (int)o->value, o->size); }

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t size, CUstream stream) {
    ENTER(IN_CONTEXT);
    struct CUstream_st *s = stream_of(stream);
    if (s == NULL) return leave(CUDA_ERROR_INVALID_HANDLE);
    if (size == 0) return leave(CUDA_SUCCESS);
    char *const t = range_of(to) ? reach(to, size) : NULL;
    if (t == NULL) return leave(CUDA_ERROR_INVALID_VALUE);
    struct op *o = submit(s, fill);
    o->to = t, o->value = value, o->size = size;
    is.fills++;
    return leave(CUDA_SUCCESS);
}

/* ---- words */

static int is_there(uint32_t word, uint32_t value, unsigned how) {
    switch (how & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ: return (int32_t)(word - value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ: return word == value;
    case CU_STREAM_WAIT_VALUE_AND: return (word & value) != 0;
    default: return ~(word | value) != 0;
    }
}

static __attribute__((unused)) void await(struct op *o) {
    const uint32_t *at = (const uint32_t *)(const void *)o->to;
    while (!is_there(__atomic_load_n(at, __ATOMIC_ACQUIRE), o->value, o->flags) && !dead()) usleep(20);
}

static __attribute__((unused)) void put(struct op *o) {
    __atomic_store_n((uint32_t *)(void *)o->to, o->value, __ATOMIC_RELEASE);
}

static __attribute__((unused)) CUresult word(CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags,
                                             void (*run)(struct op *)) {
    struct CUstream_st *s = stream_of(stream);
    if (s == NULL) return CUDA_ERROR_INVALID_HANDLE;
    if (!is.memops) return CUDA_ERROR_NOT_SUPPORTED;
    if (at % 4 || range_of(at) == NULL) return CUDA_ERROR_INVALID_VALUE;
    char *const to = reach(at, 4);
    if (to == NULL) return CUDA_ERROR_INVALID_VALUE;
    const int lost = run == put && is.lost_words && range_of(at)->kind == PEER;
    struct op *o = submit(s, lost ? NULL : run);
    o->to = to, o->value = value, o->flags = flags;
    return CUDA_SUCCESS;
}

#ifndef OLD_DRIVER /* which exports neither */
CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned int flags) {
    ENTER(IN_CONTEXT);
    if (flags & ~(3u | CU_STREAM_WAIT_VALUE_FLUSH)) return leave(CUDA_ERROR_INVALID_VALUE);
    is.value_waits++;
    return leave(word(stream, at, value, flags, await));
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned int flags) {
    ENTER(IN_CONTEXT);
    if (flags & ~(unsigned)CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) return leave(CUDA_ERROR_INVALID_VALUE);
    is.value_writes++;
    return leave(word(stream, at, value, flags, put));
}
#endif

/* ---- the host */

static void call(struct op *o) {
    in_host_call = 1; /* it may not call CUDA */
    o->call(o->with);
    in_host_call = 0;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *with) {
    ENTER(IN_CONTEXT);
    struct CUstream_st *s = stream_of(stream);
    if (s == NULL) return leave(CUDA_ERROR_INVALID_HANDLE);
    struct op *o = submit(s, call);
    o->call = function, o->with = with;
    is.host_calls++;
    return leave(CUDA_SUCCESS);
}
