/* Memory and events of other processes: their files, and who still has them open.
 *
 * Whoever maps memory of another process holds a shared lock of its file, which the kernel takes away from those that
 * were killed; so the owner sees whether it frees what somebody still uses. */
#include "fake.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>

struct name { char magic[8]; int32_t pid, device; uint64_t cookie, number, size; };

uint64_t next_number(void) {
    static uint64_t last;
    return ++last;
}

static void path_of(char *path, size_t room, const char *kind, int pid, uint64_t cookie, uint64_t number) {
    snprintf(path, room, "%s/%s.%d.%lx.%lu", folder, kind, pid, cookie, number);
}

int open_file(const char *kind, int pid, uint64_t cookie, uint64_t number, int create) {
    char path[512];
    path_of(path, sizeof path, kind, pid, cookie, number);
    return open(path, O_RDWR | O_CLOEXEC | (create ? O_CREAT | O_EXCL : 0), 0600);
}

void remove_file(const char *kind, uint64_t number) {
    char path[512];
    path_of(path, sizeof path, kind, my_pid, my_cookie, number);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0)
        misuse(&is.freed_while_mapped, "memory is freed that another process has mapped");
    if (fd >= 0) close(fd);
    unlink(path);
}

/* Not one that was killed and that nobody has waited for. */
int alive(int pid) {
    char path[64], state = 'X';
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *stat = fopen(path, "r");
    if (stat == NULL) return 0;
    if (fscanf(stat, "%*d (%*[^)]) %c", &state) != 1) state = 'X';
    fclose(stat);
    return state != 'Z' && state != 'X';
}

static int is_mine(const struct name *n) { return n->pid == my_pid && n->cookie == my_cookie; }

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr at) {
    ENTER(IN_CONTEXT);
    const struct range *r = range_of(at);
    if (!is.ipc) return leave(CUDA_ERROR_NOT_SUPPORTED);
    if (r == NULL || r->freed || r->kind != DEVICE || at - r->at >= r->size) return leave(CUDA_ERROR_INVALID_VALUE);
    const struct name name = {"memory", my_pid, physical(r->device), my_cookie, r->number, r->size};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &name, sizeof name);
    is.exports++;
    return leave(CUDA_SUCCESS);
}

static struct range *opened(const CUipcMemHandle *handle) {
    for (size_t i = 0; i < n_ranges; i++)
        if (ranges[i]->kind == PEER && !ranges[i]->freed && ranges[i]->context == current()
            && memcmp(&ranges[i]->handle, handle, sizeof *handle) == 0)
            return ranges[i];
    return NULL;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *at, CUipcMemHandle handle, unsigned int flags) {
    ENTER(IN_CONTEXT);
    struct name n;
    memcpy(&n, &handle, sizeof n);
    const int here = physical(current()->device);
    if (!is.ipc) return leave(CUDA_ERROR_NOT_SUPPORTED);
    if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return leave(CUDA_ERROR_INVALID_VALUE);
    if (strncmp(n.magic, "memory", 8) != 0) return leave(CUDA_ERROR_INVALID_VALUE);
    if (is_mine(&n)) return leave(CUDA_ERROR_INVALID_CONTEXT);
    if (!reaches(here, n.device)) return leave(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    struct range *r = opened(&handle);
    if (r == NULL) {
        if (!alive(n.pid)) return leave(CUDA_ERROR_MAP_FAILED);
        const int fd = open_file("memory", n.pid, n.cookie, n.number, 0);
        if (fd < 0) return leave(CUDA_ERROR_INVALID_VALUE);
        if (flock(fd, LOCK_SH) != 0) abort();
        r = new_range(n.size, PEER, fd);
        r->handle = handle;
        if (ordinal(n.device) >= 0) r->device = ordinal(n.device);
        is.ipc_maps++;
    }
    r->opens++;
    *at = r->at;
    return leave(CUDA_SUCCESS);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr at) {
    ENTER(IN_CONTEXT);
    struct range *r = range_of(at);
    if (r && !r->freed && r->opens == 1 && r->user && r->user->done < r->used)
        misuse(&is.use_after_free, "memory is closed that a kernel may still use");
    settle(current());
    r = range_of(at);
    if (r == NULL || r->freed || r->kind != PEER || r->at != at || r->context != current()) {
        misuse(r && r->freed ? &is.double_free : &is.bad_handle, "what is closed was not opened");
        return leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (--r->opens > 0) return leave(CUDA_SUCCESS);
    is.ipc_maps--;
    retire(r);
    return leave(CUDA_SUCCESS);
}

/* ---- events */

CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event) {
    ENTER(IN_CONTEXT);
    const struct CUevent_st *e = event_of(event);
    if (e == NULL || e->shared == NULL || e->imported) return leave(CUDA_ERROR_INVALID_HANDLE);
    const struct name name = {"event", my_pid, physical(e->context->device), my_cookie, e->file, 0};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &name, sizeof name);
    return leave(CUDA_SUCCESS);
}

CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle) {
    ENTER(IN_CONTEXT);
    struct name n;
    memcpy(&n, &handle, sizeof n);
    if (!is.ipc_events) return leave(CUDA_ERROR_NOT_SUPPORTED);
    if (strncmp(n.magic, "event", 8) != 0) return leave(CUDA_ERROR_INVALID_VALUE);
    if (is_mine(&n)) return leave(CUDA_ERROR_INVALID_CONTEXT);
    if (!reaches(physical(current()->device), n.device)) return leave(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    const int fd = alive(n.pid) ? open_file("event", n.pid, n.cookie, n.number, 0) : -1;
    if (fd < 0) return leave(CUDA_ERROR_MAP_FAILED);
    struct CUevent_st *e = new_event(CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
    e->shared = mmap(NULL, sizeof *e->shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (e->shared == MAP_FAILED) abort();
    close(fd);
    e->imported = 1;
    is.ipc_events_open++;
    *event = e;
    return leave(CUDA_SUCCESS);
}
