/* Allocations.  The memory is a file, mapped twice: where its address says, so that no host code may touch it, and
 * elsewhere, where the stand-in does.  Kernels use the addresses themselves, which are open while one runs: pointers
 * may lie in memory too, and could not be translated. */
#include "fake.h"

#include <sys/mman.h>

enum { PAGE = 4096, EDGE = 0xa7, RUBBISH = 0xe5, FILLED = 16 << 20 };
struct range **ranges;
size_t n_ranges;

struct range *range_of(CUdeviceptr at) {
    struct range *stale = NULL;
    for (size_t i = 0; i < n_ranges; i++) {
        struct range *r = ranges[i];
        if (at - r->at >= r->mapped + PAGE) continue; /* one page behind it is guarded, and its own */
        if (!r->freed) return r;
        stale = r;
    }
    return stale;
}

static void *map(void *at, size_t size, int how, int flags, int fd) {
    void *made = mmap(at, size, how, flags | (at ? MAP_FIXED : 0), fd, 0);
    if (made == MAP_FAILED) abort();
    return made;
}

/* A place for `mapped` bytes that was freed, if addresses are used again. */
static CUdeviceptr used_place(size_t mapped) {
    for (size_t i = n_ranges; is.reuse && i-- > 0;) {
        if (!ranges[i]->freed || ranges[i]->mapped != mapped) continue;
        const CUdeviceptr at = ranges[i]->at;
        free(ranges[i]);
        ranges[i] = ranges[--n_ranges];
        return at;
    }
    return 0;
}

struct range *new_range(size_t size, int kind, int fd) {
    static size_t room;
    if (n_ranges == room) ranges = realloc(ranges, (room = 2 * room + 64) * sizeof *ranges);
    struct range *r = calloc(1, sizeof *r);
    r->size = size, r->mapped = (size + PAGE - 1) / PAGE * PAGE, r->kind = kind, r->fd = fd;
    r->context = current(), r->device = r->context->device;
    const CUdeviceptr used = used_place(r->mapped);
    const int nowhere = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    r->at = used ? used : (CUdeviceptr)(uintptr_t)map(NULL, r->mapped + PAGE, PROT_NONE, nowhere, -1);
    void *const at = (void *)(uintptr_t)r->at;
    if (kind == HOST) {
        r->alias = map(at, r->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    } else {
        map(at, r->mapped, PROT_NONE, MAP_SHARED, fd);
        r->alias = map(NULL, r->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
    }
    return ranges[n_ranges++] = r;
}

/* It is gone; its addresses stay taken. */
void retire(struct range *r) {
    if (r->kind != HOST) munmap(r->alias, r->mapped), close(r->fd);
    const int nowhere = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    map((void *)(uintptr_t)r->at, r->mapped, PROT_NONE, nowhere, -1);
    r->freed = 1;
}

char *reach(CUdeviceptr at, size_t size) {
    const struct range *r = range_of(at);
    if (r == NULL) return (char *)(uintptr_t)at; /* the host's */
    if (r->freed) {
        misuse(&is.use_after_free, "memory is used that was freed or closed");
        return NULL;
    }
    if (at - r->at > r->size || size > r->size - (at - r->at)) {
        misuse(&is.out_of_range, "an access goes beyond its allocation");
        return NULL;
    }
    return r->alias + (at - r->at);
}

/* What lies behind the last byte of an allocation is still as it was made. */
static void check_edge(struct range *r) {
    if (r->kind != DEVICE && r->kind != POOL) return;
    for (size_t i = r->size; i < r->mapped; i++)
        if ((unsigned char)r->alias[i] != EDGE) {
            misuse(&is.out_of_range, "a kernel wrote beyond an allocation");
            memset(r->alias + r->size, EDGE, r->mapped - r->size);
            return;
        }
}

void check_edges(void) {
    for (size_t i = 0; i < n_ranges; i++)
        if (!ranges[i]->freed) check_edge(ranges[i]);
}

void protect_all(int how) {
    for (size_t i = 0; i < n_ranges; i++)
        if (!ranges[i]->freed && ranges[i]->kind != HOST)
            if (mprotect((void *)(uintptr_t)ranges[i]->at, ranges[i]->mapped, how) != 0) abort();
}

static CUresult allocate(CUdeviceptr *at, size_t size) {
    const long rounded = (long)((size + PAGE - 1) / PAGE * PAGE);
    if (size == 0) return CUDA_ERROR_INVALID_VALUE;
    if (size > 1ul << 40 || is.bytes + rounded > is.room) return CUDA_ERROR_OUT_OF_MEMORY;
    const uint64_t number = next_number();
    const int fd = open_file("memory", my_pid, my_cookie, number, 1);
    if (fd < 0 || ftruncate(fd, rounded) != 0) abort();
    struct range *r = new_range(size, is.pool ? POOL : DEVICE, fd);
    r->number = number;
    memset(r->alias, RUBBISH, size < FILLED ? size : FILLED);
    memset(r->alias + size, EDGE, r->mapped - size);
    is.allocations++, is.bytes += (long)r->mapped;
    *at = r->at;
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t size) {
    ENTER(IN_CONTEXT);
    return leave(allocate(at, size));
}

static CUresult release(CUdeviceptr at) {
    struct range *r = range_of(at);
    if (r && !r->freed) {
        settle(r->context); /* as CUDA does: whoever frees while a stream waits for ever, waits too */
        r = range_of(at);
    }
    if (r && r->freed) {
        misuse(&is.double_free, "memory is freed twice");
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (r == NULL || r->at != at || (r->kind != DEVICE && r->kind != POOL)) {
        misuse(&is.bad_handle, "what is freed is not the beginning of an allocation");
        return CUDA_ERROR_INVALID_VALUE;
    }
    check_edge(r);
    is.allocations--, is.bytes -= (long)r->mapped;
    remove_file("memory", r->number);
    retire(r);
    return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr at) {
    ENTER(IN_CONTEXT);
    return leave(release(at));
}

CUresult cuMemHostAlloc(void **at, size_t size, unsigned int flags) {
    ENTER(IN_CONTEXT);
    if (size == 0 || flags > 7) return leave(CUDA_ERROR_INVALID_VALUE);
    struct range *r = new_range(size, HOST, -1);
    is.pinned++;
    *at = (void *)(uintptr_t)r->at;
    return leave(CUDA_SUCCESS);
}

CUresult cuMemFreeHost(void *at) {
    ENTER(IN_CONTEXT);
    settle(current());
    struct range *r = range_of((CUdeviceptr)(uintptr_t)at);
    if (r == NULL || r->freed || r->kind != HOST || r->at != (CUdeviceptr)(uintptr_t)at) {
        misuse(r && r->freed ? &is.double_free : &is.bad_handle, "this pinned memory is not there");
        return leave(CUDA_ERROR_INVALID_VALUE);
    }
    is.pinned--;
    retire(r);
    return leave(CUDA_SUCCESS);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr at) {
    ENTER(IN_CONTEXT);
    const struct range *r = range_of(at);
    if (r == NULL || r->freed || at - r->at >= r->size) return leave(CUDA_ERROR_NOT_FOUND);
    if (base) *base = r->at;
    if (size) *size = r->size;
    return leave(CUDA_SUCCESS);
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute which, CUdeviceptr at) {
    ENTER(INITIALISED);
    const struct range *r = range_of(at);
    if (r == NULL || r->freed || at - r->at >= r->size) return leave(CUDA_ERROR_INVALID_VALUE); /* the host's */
    switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)data = r->context; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = r->kind == HOST ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        break;
    /* Of these CUDA says no more than that they are boolean: whoever gives an int must have cleared it. */
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(char *)data = 0; break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *(char *)data = r->kind == DEVICE; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)data = r->device; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)data = r->at; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)data = r->size; break;
    default: return leave(CUDA_ERROR_INVALID_VALUE);
    }
    return leave(CUDA_SUCCESS);
}

/* ---- memory as a framework's allocator hands it out: a slice of a larger allocation */

enum { BEFORE = 1536 };

CUdeviceptr fake_suballoc(size_t size) {
    CUdeviceptr whole;
    pthread_mutex_lock(&lock);
    const int code = current() ? (int)allocate(&whole, size + 2 * BEFORE) : CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_unlock(&lock);
    return code == CUDA_SUCCESS ? whole + BEFORE : 0;
}

CUresult fake_subfree(CUdeviceptr at) {
    pthread_mutex_lock(&lock);
    return leave(release(at - BEFORE));
}
