"""The driver and devices as Cython sees them; driver.h, device.h and mark.h are their documentation."""

from libc.stdint cimport uint32_t, uint64_t, uintptr_t


cdef extern from "system/cuda/mark.h" nogil:
    ctypedef int CUresult
    ctypedef int CUdevice
    ctypedef struct CUctx_st:
        pass
    ctypedef CUctx_st* CUcontext
    ctypedef struct CUstream_st:
        pass
    ctypedef CUstream_st* CUstream
    ctypedef struct CUevent_st:
        pass
    ctypedef CUevent_st* CUevent
    ctypedef struct CUmod_st:
        pass
    ctypedef CUmod_st* CUmodule
    ctypedef struct CUfunc_st:
        pass
    ctypedef CUfunc_st* CUfunction
    ctypedef struct CUuuid:
        char bytes[16]
    ctypedef struct CUipcMemHandle:
        char reserved[64]
    ctypedef struct CUipcEventHandle:
        char reserved[64]
    enum:
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, CU_DEVICE_ATTRIBUTE_MPS_ENABLED
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
        CU_MEMORYTYPE_DEVICE, CU_STREAM_NON_BLOCKING, CU_EVENT_DISABLE_TIMING, CU_EVENT_INTERPROCESS
        CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, CUDA_ERROR_NOT_READY
        CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_DEVICEMAP
    ctypedef enum CUstreamCaptureStatus:
        CU_STREAM_CAPTURE_STATUS_NONE
    struct hk_cuda:
        CUresult (*cuInit)(unsigned int) noexcept nogil
        CUresult (*cuGetErrorString)(CUresult, const char**) noexcept nogil
        CUresult (*cuDeviceGetCount)(int*) noexcept nogil
        CUresult (*cuDeviceGet)(CUdevice*, int) noexcept nogil
        CUresult (*cuDeviceGetName)(char*, int, CUdevice) noexcept nogil
        CUresult (*cuDeviceGetUuid_v2)(CUuuid*, CUdevice) noexcept nogil
        CUresult (*cuDeviceGetAttribute)(int*, int, CUdevice) noexcept nogil
        CUresult (*cuDevicePrimaryCtxRetain)(CUcontext*, CUdevice) noexcept nogil
        CUresult (*cuCtxGetDevice)(CUdevice*) noexcept nogil
        CUresult (*cuCtxPushCurrent_v2)(CUcontext) noexcept nogil
        CUresult (*cuCtxPopCurrent_v2)(CUcontext*) noexcept nogil
        CUresult (*cuCtxSynchronize)() noexcept nogil
        CUresult (*cuMemAlloc_v2)(uint64_t*, size_t) noexcept nogil
        CUresult (*cuMemGetAddressRange_v2)(uint64_t*, size_t*, uint64_t) noexcept nogil
        CUresult (*cuMemFree_v2)(uint64_t) noexcept nogil
        CUresult (*cuMemHostAlloc)(void**, size_t, unsigned int) noexcept nogil
        CUresult (*cuMemFreeHost)(void*) noexcept nogil
        CUresult (*cuMemsetD8Async)(uint64_t, unsigned char, size_t, CUstream) noexcept nogil
        CUresult (*cuPointerGetAttribute)(void*, int, uint64_t) noexcept nogil
        CUresult (*cuIpcGetMemHandle)(CUipcMemHandle*, uint64_t) noexcept nogil
        CUresult (*cuIpcOpenMemHandle_v2)(uint64_t*, CUipcMemHandle, unsigned int) noexcept nogil
        CUresult (*cuIpcCloseMemHandle)(uint64_t) noexcept nogil
        CUresult (*cuIpcGetEventHandle)(CUipcEventHandle*, CUevent) noexcept nogil
        CUresult (*cuIpcOpenEventHandle)(CUevent*, CUipcEventHandle) noexcept nogil
        CUresult (*cuEventCreate)(CUevent*, unsigned int) noexcept nogil
        CUresult (*cuEventDestroy_v2)(CUevent) noexcept nogil
        CUresult (*cuEventRecord)(CUevent, CUstream) noexcept nogil
        CUresult (*cuStreamCreateWithPriority)(CUstream*, unsigned int, int) noexcept nogil
        CUresult (*cuStreamDestroy_v2)(CUstream) noexcept nogil
        CUresult (*cuStreamQuery)(CUstream) noexcept nogil
        CUresult (*cuStreamSynchronize)(CUstream) noexcept nogil
        void* cuStreamWaitValue32_v2
        void* cuStreamWriteValue32_v2
        CUresult (*cuStreamWaitEvent)(CUstream, CUevent, unsigned int) noexcept nogil
        CUresult (*cuStreamIsCapturing)(CUstream, CUstreamCaptureStatus*) noexcept nogil
        CUresult (*cuModuleLoadData)(CUmodule*, const void*) noexcept nogil
        CUresult (*cuModuleGetFunction)(CUfunction*, CUmodule, const char*) noexcept nogil
        CUresult (*cuLaunchKernel)(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
                                   unsigned int, unsigned int, CUstream, void**, void**) noexcept nogil
    int hk_cuda_open(hk_cuda*, const char*, char*, size_t)

    struct hk_device:
        const hk_cuda* cuda
        CUcontext context
        int ordinal
        char words[160]
    int hk_device_enter(hk_device*)
    void hk_device_leave(hk_device*, int)
    int hk_device_refused(hk_device*, const char*, CUresult)
    int hk_device_copy(hk_device*, void*, const void*, const void*, size_t)
    int hk_device_zero(hk_device*, void*, void*, size_t)
    int hk_device_record(hk_device*, void*, CUevent)
    int hk_device_await(hk_device*, void*, CUevent)

    int hk_mark_write(hk_device*, void*, uint64_t, uint32_t)
    int hk_mark_wait(hk_device*, void*, uint64_t, uint32_t)


cdef hk_cuda cuda

cdef int check(int code, str what) except -1
cdef str error_text(int code)


cdef class Device:
    cdef hk_device d
    cdef CUdevice handle
    cdef readonly int ordinal, multiprocessors
    cdef readonly str name, uuid
    cdef readonly tuple capability
    cdef dict functions, modules
    cdef readonly list spare        # streams, for `take_stream`
    cdef int _word(self, uint64_t address, uint32_t value, uintptr_t stream, bint wait) except -1
