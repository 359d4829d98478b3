/* Devices, contexts, the names of errors. */
#include "fake.h"

#include <time.h>

static struct CUctx_st contexts[DEVICES];
static _Thread_local struct { struct CUctx_st *at[8]; int depth; } stack;
uint64_t my_cookie;

struct CUctx_st *current(void) { return stack.depth ? stack.at[stack.depth - 1] : NULL; }
int physical(int device) { return (int)is.first_device + device; }
int reaches(int device, int other) { return device == other || is.peers; }

int ordinal(int at) {
    const int device = at - (int)is.first_device;
    return device >= 0 && device < is.devices ? device : -1;
}

CUresult cuInit(unsigned int flags) {
    ENTER(FREE_CALL);
    struct timespec now;
    folder = getenv("FAKE_CUDA_DIR");
    if (flags) return leave(CUDA_ERROR_INVALID_VALUE);
    if (folder == NULL || is.devices <= 0) return leave(CUDA_ERROR_NO_DEVICE);
    if (my_pid && my_pid != getpid()) return leave(CUDA_ERROR_NOT_INITIALIZED);
    if (my_pid == 0) {
        clock_gettime(CLOCK_REALTIME, &now);
        my_cookie = (uint64_t)now.tv_sec << 32 ^ (uint64_t)now.tv_nsec;
        my_pid = getpid();
    }
    return leave(CUDA_SUCCESS);
}

CUresult cuDriverGetVersion(int *version) {
    ENTER(FREE_CALL);
    *version = (int)is.version;
    return leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetCount(int *count) {
    ENTER(INITIALISED);
    *count = (int)is.devices;
    return leave(CUDA_SUCCESS);
}

static int is_device(CUdevice d) { return d >= 0 && d < is.devices && d < DEVICES; }

CUresult cuDeviceGet(CUdevice *device, int which) {
    ENTER(INITIALISED);
    if (!is_device(which)) return leave(CUDA_ERROR_INVALID_DEVICE);
    *device = which;
    return leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetName(char *name, int room, CUdevice device) {
    ENTER(INITIALISED);
    if (!is_device(device)) return leave(CUDA_ERROR_INVALID_DEVICE);
    snprintf(name, (size_t)room, "Stand-in %d", physical(device));
    return leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    ENTER(INITIALISED);
    if (!is_device(device)) return leave(CUDA_ERROR_INVALID_DEVICE);
    memcpy(uuid->bytes, "stand-in device", 16);
    uuid->bytes[15] = (char)physical(device);
    return leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device) {
    ENTER(INITIALISED);
    if (!is_device(device)) return leave(CUDA_ERROR_INVALID_DEVICE);
    switch (which) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 4; break;
    case CU_DEVICE_ATTRIBUTE_INTEGRATED: *value = 0; break;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: *value = 1; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR: *value = is.memops != 0; break;
    case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED: *value = is.ipc_events != 0; break;
    case CU_DEVICE_ATTRIBUTE_MPS_ENABLED: *value = is.mps != 0; break;
    default: return leave(CUDA_ERROR_INVALID_VALUE);
    }
    return leave(CUDA_SUCCESS);
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    ENTER(INITIALISED);
    if (!is_device(device) || !is_device(peer)) return leave(CUDA_ERROR_INVALID_DEVICE);
    *can = device != peer && is.peers;
    return leave(CUDA_SUCCESS);
}

/* ---- contexts */

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    ENTER(INITIALISED);
    if (!is_device(device)) return leave(CUDA_ERROR_INVALID_DEVICE);
    struct CUctx_st *c = &contexts[device];
    if (c->retained++ == 0) c->device = device, c->alive = 1, c->peers = 0, is.contexts++;
    *context = c;
    return leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    ENTER(INITIALISED);
    if (!is_device(device)) return leave(CUDA_ERROR_INVALID_DEVICE);
    struct CUctx_st *c = &contexts[device];
    if (c->retained == 0) return leave(CUDA_ERROR_INVALID_CONTEXT);
    if (--c->retained > 0) return leave(CUDA_SUCCESS);
    /* CUDA takes all of it away silently; what a library left there it has forgotten. */
    for (size_t i = 0; i < n_ranges; i++)
        if (!ranges[i]->freed && ranges[i]->context == c) {
            misuse(&is.bad_handle, "a context goes before memory that was made in it");
            break;
        }
    settle(c);
    c->alive = 0, is.contexts--;
    return leave(CUDA_SUCCESS);
}

CUresult cuCtxGetCurrent(CUcontext *context) {
    ENTER(INITIALISED);
    *context = current();
    return leave(CUDA_SUCCESS);
}

CUresult cuCtxGetDevice(CUdevice *device) {
    ENTER(IN_CONTEXT);
    *device = current()->device;
    return leave(CUDA_SUCCESS);
}

static int is_context(CUcontext c) { return c >= contexts && c < contexts + DEVICES && c->alive; }

CUresult cuCtxPushCurrent_v2(CUcontext context) {
    ENTER(INITIALISED);
    if (!is_context(context)) return leave(CUDA_ERROR_INVALID_CONTEXT);
    if (stack.depth == 8) {
        misuse(&is.bad_handle, "contexts are pushed and not popped");
        return leave(CUDA_ERROR_UNKNOWN);
    }
    stack.at[stack.depth++] = context;
    return leave(CUDA_SUCCESS);
}

CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    ENTER(INITIALISED);
    if (stack.depth == 0) return leave(CUDA_ERROR_INVALID_CONTEXT);
    stack.depth--;
    if (context) *context = stack.at[stack.depth];
    return leave(CUDA_SUCCESS);
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
    ENTER(IN_CONTEXT);
    struct CUctx_st *c = current();
    if (flags) return leave(CUDA_ERROR_INVALID_VALUE);
    if (!is_context(peer) || peer == c) return leave(CUDA_ERROR_INVALID_CONTEXT);
    if (!reaches(c->device, peer->device)) return leave(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    if (c->peers >> peer->device & 1) return leave(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    c->peers |= 1L << peer->device;
    return leave(CUDA_SUCCESS);
}

CUresult cuCtxSynchronize(void) {
    ENTER(IN_CONTEXT);
    is.waits++;
    settle(current());
    return leave(dead());
}

/* ---- errors */

#define ERRORS(X) \
    X(CUDA_SUCCESS, "no error") X(CUDA_ERROR_INVALID_VALUE, "invalid argument") \
    X(CUDA_ERROR_OUT_OF_MEMORY, "out of memory") X(CUDA_ERROR_NOT_INITIALIZED, "initialization error") \
    X(CUDA_ERROR_DEINITIALIZED, "driver shutting down") X(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected") \
    X(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal") \
    X(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid") \
    X(CUDA_ERROR_INVALID_CONTEXT, "invalid device context") \
    X(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed") \
    X(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device") \
    X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices") \
    X(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle") X(CUDA_ERROR_NOT_FOUND, "named symbol not found") \
    X(CUDA_ERROR_NOT_READY, "device not ready") \
    X(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered") \
    X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled") \
    X(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled") \
    X(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed") \
    X(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure") \
    X(CUDA_ERROR_NOT_PERMITTED, "operation not permitted") X(CUDA_ERROR_NOT_SUPPORTED, "operation not supported") \
    X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing") \
    X(CUDA_ERROR_UNKNOWN, "unknown error")

CUresult cuGetErrorName(CUresult error, const char **name) {
#define NAME(each, words) if (error == each) return *name = #each, CUDA_SUCCESS;
    ERRORS(NAME)
    return *name = NULL, CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **text) {
#define WORDS(each, words) if (error == each) return *text = words, CUDA_SUCCESS;
    ERRORS(WORDS)
    return *text = NULL, CUDA_ERROR_INVALID_VALUE;
}
