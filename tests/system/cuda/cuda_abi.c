/* Numbers and sizes of what hocket uses of the CUDA driver: as NVIDIA's cuda.h has them (-DSYSTEM), or ours.
 * With -DSYSTEM the compiler also checks our prototypes against NVIDIA's. */
#ifdef SYSTEM
#include <cuda.h>
#define HK_CUDA_TYPES
#endif
#include "system/cuda/driver.h"

#define S(type) printf("sizeof %s %zu\n", #type, sizeof(type));
#define E(name) printf("%s %d\n", #name, (int)name);
#define P(name) printf("%s %zu\n", #name, (size_t)name);

#ifdef SYSTEM
#define SAME(name, arguments) \
    _Static_assert(__builtin_types_compatible_p(__typeof__(name), CUresult arguments), #name " has another prototype");
HK_CUDA_FUNCTIONS(SAME)
HK_CUDA_OPTIONAL(SAME)
/* Which name a call by the number-less one reaches: those of the list, or we would use an older form of it. */
#define TEXT_(name) #name
#define TEXT(name) TEXT_(name)
#define REACHES(name, exported) \
    if (strcmp(TEXT(name), #exported) != 0) printf("%s is exported as %s\n", #exported, TEXT(name));
#else
#define REACHES(name, exported)
#endif

int main(void) {
    S(CUresult) S(CUdevice) S(CUdevice_attribute) S(CUpointer_attribute) S(CUstreamCaptureStatus) S(CUdeviceptr)
    S(cuuint32_t) S(CUcontext) S(CUuuid) S(CUipcMemHandle) S(CUipcEventHandle) S(CUhostFn)
    E(CUDA_SUCCESS) E(CUDA_ERROR_INVALID_VALUE) E(CUDA_ERROR_OUT_OF_MEMORY) E(CUDA_ERROR_NOT_INITIALIZED)
    E(CUDA_ERROR_DEINITIALIZED) E(CUDA_ERROR_NO_DEVICE) E(CUDA_ERROR_INVALID_DEVICE) E(CUDA_ERROR_INVALID_IMAGE)
    E(CUDA_ERROR_INVALID_CONTEXT) E(CUDA_ERROR_MAP_FAILED) E(CUDA_ERROR_NO_BINARY_FOR_GPU)
    E(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED) E(CUDA_ERROR_INVALID_HANDLE) E(CUDA_ERROR_NOT_FOUND)
    E(CUDA_ERROR_NOT_READY) E(CUDA_ERROR_ILLEGAL_ADDRESS) E(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
    E(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED) E(CUDA_ERROR_CONTEXT_IS_DESTROYED) E(CUDA_ERROR_LAUNCH_FAILED)
    E(CUDA_ERROR_NOT_PERMITTED) E(CUDA_ERROR_NOT_SUPPORTED) E(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    E(CUDA_ERROR_UNKNOWN)
    E(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK) E(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
    E(CU_DEVICE_ATTRIBUTE_INTEGRATED) E(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING)
    E(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) E(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
    E(CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR) E(CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED)
    E(CU_DEVICE_ATTRIBUTE_MPS_ENABLED)
    E(CU_POINTER_ATTRIBUTE_CONTEXT) E(CU_POINTER_ATTRIBUTE_MEMORY_TYPE) E(CU_POINTER_ATTRIBUTE_IS_MANAGED)
    E(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) E(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE)
    E(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) E(CU_POINTER_ATTRIBUTE_RANGE_SIZE) E(CU_STREAM_CAPTURE_STATUS_NONE)
    E(CU_STREAM_CAPTURE_STATUS_ACTIVE) E(CU_STREAM_CAPTURE_STATUS_INVALIDATED) E(CU_MEMORYTYPE_HOST)
    E(CU_MEMORYTYPE_DEVICE) E(CU_MEMHOSTALLOC_PORTABLE) E(CU_MEMHOSTALLOC_DEVICEMAP)
    E(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) E(CU_STREAM_DEFAULT) E(CU_STREAM_NON_BLOCKING) E(CU_EVENT_DEFAULT)
    E(CU_EVENT_BLOCKING_SYNC) E(CU_EVENT_DISABLE_TIMING) E(CU_EVENT_INTERPROCESS) E(CU_STREAM_WAIT_VALUE_GEQ)
    E(CU_STREAM_WAIT_VALUE_EQ) E(CU_STREAM_WAIT_VALUE_AND) E(CU_STREAM_WAIT_VALUE_NOR) E(CU_STREAM_WAIT_VALUE_FLUSH)
    E(CU_STREAM_WRITE_VALUE_DEFAULT) E(CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) P(CU_STREAM_LEGACY)
    P(CU_STREAM_PER_THREAD)
    REACHES(cuDeviceGetUuid, cuDeviceGetUuid_v2) REACHES(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2)
    REACHES(cuCtxPushCurrent, cuCtxPushCurrent_v2) REACHES(cuCtxPopCurrent, cuCtxPopCurrent_v2)
    REACHES(cuMemAlloc, cuMemAlloc_v2) REACHES(cuMemFree, cuMemFree_v2) REACHES(cuEventDestroy, cuEventDestroy_v2)
    REACHES(cuMemGetAddressRange, cuMemGetAddressRange_v2) REACHES(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2)
    REACHES(cuStreamDestroy, cuStreamDestroy_v2) REACHES(cuStreamWaitValue32, cuStreamWaitValue32_v2)
    REACHES(cuStreamWriteValue32, cuStreamWriteValue32_v2) REACHES(cuMemHostAlloc, cuMemHostAlloc)
    REACHES(cuMemcpyAsync, cuMemcpyAsync) REACHES(cuLaunchKernel, cuLaunchKernel) REACHES(cuEventRecord, cuEventRecord)
    REACHES(cuEventCreate, cuEventCreate) REACHES(cuStreamCreate, cuStreamCreate)
    REACHES(cuMemsetD8Async, cuMemsetD8Async) REACHES(cuStreamWaitEvent, cuStreamWaitEvent)
    REACHES(cuPointerGetAttribute, cuPointerGetAttribute)
    return 0;
}
