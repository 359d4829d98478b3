/* What hocket uses of the CUDA driver, libcuda.so.1, which is opened when it is first asked for: no build and no wheel
 * needs CUDA.
 *
 * The names are the driver's own, so its manual describes them, and those with a number are the ones that the library
 * exports; cuda.h drops the number.  tests/system/cuda/cuda_abi.c compares every number, size and
 * prototype with NVIDIA's cuda.h; do not include both (that test defines HK_CUDA_TYPES, for the functions alone). */
#ifndef HK_CUDA_H
#define HK_CUDA_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "system/foreign.h"

#ifndef HK_CUDA_TYPES
#define HK_CUDA_TYPES

typedef enum {
    CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1, CUDA_ERROR_OUT_OF_MEMORY = 2, CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_DEINITIALIZED = 4, CUDA_ERROR_NO_DEVICE = 100, CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200, CUDA_ERROR_INVALID_CONTEXT = 201, CUDA_ERROR_MAP_FAILED = 205,
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217, CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500, CUDA_ERROR_NOT_READY = 600, CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED = 705,
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709, CUDA_ERROR_LAUNCH_FAILED = 719, CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900, CUDA_ERROR_UNKNOWN = 999
} CUresult;
typedef enum {
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_INTEGRATED = 18, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR = 123, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED = 125,
    CU_DEVICE_ATTRIBUTE_MPS_ENABLED = 133
} CUdevice_attribute;
typedef enum {
    CU_POINTER_ATTRIBUTE_CONTEXT = 1, CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2, CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11, CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12
} CUpointer_attribute;
typedef enum {
    CU_STREAM_CAPTURE_STATUS_NONE = 0, CU_STREAM_CAPTURE_STATUS_ACTIVE = 1, CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2
} CUstreamCaptureStatus;
enum { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_DEVICE = 2 };
enum { CU_MEMHOSTALLOC_PORTABLE = 1, CU_MEMHOSTALLOC_DEVICEMAP = 2 };
enum { CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1 };
enum { CU_STREAM_DEFAULT = 0, CU_STREAM_NON_BLOCKING = 1 };
enum {
    CU_EVENT_DEFAULT = 0, CU_EVENT_BLOCKING_SYNC = 1, CU_EVENT_DISABLE_TIMING = 2, CU_EVENT_INTERPROCESS = 4
};
enum {
    CU_STREAM_WAIT_VALUE_GEQ = 0, CU_STREAM_WAIT_VALUE_EQ = 1, CU_STREAM_WAIT_VALUE_AND = 2,
    CU_STREAM_WAIT_VALUE_NOR = 3, CU_STREAM_WAIT_VALUE_FLUSH = 1 << 30
};
enum { CU_STREAM_WRITE_VALUE_DEFAULT = 0, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER = 1 };

typedef uint64_t CUdeviceptr;
typedef uint32_t cuuint32_t;
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUuuid_st { char bytes[16]; } CUuuid;
typedef struct CUipcMemHandle_st { char reserved[64]; } CUipcMemHandle;
typedef struct CUipcEventHandle_st { char reserved[64]; } CUipcEventHandle;
typedef void (*CUhostFn)(void *);

#define CU_STREAM_LEGACY ((CUstream)1)
#define CU_STREAM_PER_THREAD ((CUstream)2)

#endif

/* The functions, by name; each gives a CUresult. */
#define HK_CUDA_FUNCTIONS(X) \
    X(cuInit, (unsigned int)) \
    X(cuDriverGetVersion, (int *)) \
    X(cuGetErrorString, (CUresult, const char **)) \
    X(cuDeviceGetCount, (int *)) \
    X(cuDeviceGet, (CUdevice *, int)) \
    X(cuDeviceGetName, (char *, int, CUdevice)) \
    X(cuDeviceGetUuid_v2, (CUuuid *, CUdevice)) \
    X(cuDeviceGetAttribute, (int *, CUdevice_attribute, CUdevice)) \
    X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice)) \
    X(cuCtxGetCurrent, (CUcontext *)) \
    X(cuCtxGetDevice, (CUdevice *)) \
    X(cuCtxPushCurrent_v2, (CUcontext)) \
    X(cuCtxPopCurrent_v2, (CUcontext *)) \
    X(cuCtxSynchronize, (void)) \
    X(cuMemAlloc_v2, (CUdeviceptr *, size_t)) \
    X(cuMemFree_v2, (CUdeviceptr)) \
    X(cuMemHostAlloc, (void **, size_t, unsigned int)) \
    X(cuMemFreeHost, (void *)) \
    X(cuMemGetAddressRange_v2, (CUdeviceptr *, size_t *, CUdeviceptr)) \
    X(cuPointerGetAttribute, (void *, CUpointer_attribute, CUdeviceptr)) \
    X(cuIpcGetMemHandle, (CUipcMemHandle *, CUdeviceptr)) \
    X(cuIpcOpenMemHandle_v2, (CUdeviceptr *, CUipcMemHandle, unsigned int)) \
    X(cuIpcCloseMemHandle, (CUdeviceptr)) \
    X(cuIpcGetEventHandle, (CUipcEventHandle *, CUevent)) \
    X(cuIpcOpenEventHandle, (CUevent *, CUipcEventHandle)) \
    X(cuEventCreate, (CUevent *, unsigned int)) \
    X(cuEventDestroy_v2, (CUevent)) \
    X(cuEventRecord, (CUevent, CUstream)) \
    X(cuEventQuery, (CUevent)) \
    X(cuStreamCreateWithPriority, (CUstream *, unsigned int, int)) \
    X(cuStreamDestroy_v2, (CUstream)) \
    X(cuStreamQuery, (CUstream)) \
    X(cuStreamSynchronize, (CUstream)) \
    X(cuStreamWaitEvent, (CUstream, CUevent, unsigned int)) \
    X(cuStreamIsCapturing, (CUstream, CUstreamCaptureStatus *)) \
    X(cuMemcpyAsync, (CUdeviceptr, CUdeviceptr, size_t, CUstream)) \
    X(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream)) \
    X(cuModuleLoadData, (CUmodule *, const void *)) \
    X(cuModuleGetFunction, (CUfunction *, CUmodule, const char *)) \
    X(cuLaunchKernel, (CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, \
                       unsigned int, CUstream, void **, void **))

/* NULL in a driver that lacks them: those for words came with CUDA 11.7, and only tests and checks call the others. */
#define HK_CUDA_OPTIONAL(X) \
    X(cuGetErrorName, (CUresult, const char **)) \
    X(cuDeviceCanAccessPeer, (int *, CUdevice, CUdevice)) \
    X(cuDevicePrimaryCtxRelease_v2, (CUdevice)) \
    X(cuCtxEnablePeerAccess, (CUcontext, unsigned int)) \
    X(cuEventSynchronize, (CUevent)) \
    X(cuStreamCreate, (CUstream *, unsigned int)) \
    X(cuModuleUnload, (CUmodule)) \
    X(cuLaunchHostFunc, (CUstream, CUhostFn, void *)) \
    X(cuStreamWaitValue32_v2, (CUstream, CUdeviceptr, cuuint32_t, unsigned int)) \
    X(cuStreamWriteValue32_v2, (CUstream, CUdeviceptr, cuuint32_t, unsigned int))

typedef struct hk_cuda {
    void *library;
#define HK_CUDA_MEMBER(name, arguments) CUresult(*name) arguments;
    HK_CUDA_FUNCTIONS(HK_CUDA_MEMBER)
    HK_CUDA_OPTIONAL(HK_CUDA_MEMBER)
#undef HK_CUDA_MEMBER
} hk_cuda;

/* Open the library `soname`.  0, or -1 with the reason in `why`. */
static inline int hk_cuda_open(hk_cuda *c, const char *soname, char *why, size_t room) {
    if ((c->library = hk_foreign_open(soname, why, room)) == NULL)
        return -1;
#define HK_CUDA_FIND(name, arguments) *(void **)&c->name = dlsym(c->library, #name);
#define HK_CUDA_NEED(name, arguments) \
    if ((*(void **)&c->name = hk_foreign_find(c->library, soname, #name, why, room)) == NULL) \
        return -1;
    HK_CUDA_OPTIONAL(HK_CUDA_FIND)
    HK_CUDA_FUNCTIONS(HK_CUDA_NEED)
#undef HK_CUDA_FIND
#undef HK_CUDA_NEED
    return 0;
}

#endif
