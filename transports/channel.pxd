"""The transport interface as Cython sees it; channel.h is its documentation."""

from libc.stdint cimport uint32_t, uint64_t


cdef extern from "transports/channel.h" nogil:
    const char* HK_CAPSULE
    enum:
        HK_AGAIN
        HK_LOST
        HK_FAULT
    enum:
        HK_ONE_WAY
        HK_REDUCED
        HK_MOVED

    struct hk_view:
        uint64_t tag
        uint64_t length
        const char* data
        size_t avail

    struct hk_channel:
        const hk_channel_ops* ops
        int fd
        short events
        int error
        const char* words
        uint32_t* bell
        int traffic
        void* stream

    struct hk_channel_ops:
        long (*send)(hk_channel*, uint64_t, uint64_t, uint64_t, const void*, size_t) noexcept nogil
        int (*settled)(hk_channel*) noexcept nogil
        long (*multicast)(hk_channel**, int, uint64_t, uint64_t, uint64_t, const void*, size_t) noexcept nogil
        int (*peek)(hk_channel*, hk_view*, size_t) noexcept nogil
        void (*consume)(hk_channel*, size_t, int) noexcept nogil
        long (*recv)(hk_channel*, void*, size_t) noexcept nogil
        void (*forget)(hk_channel*) noexcept nogil
