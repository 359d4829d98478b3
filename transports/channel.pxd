"""The transport interface as Cython sees it; channel.h is its documentation."""

from cpython.pycapsule cimport PyCapsule_CheckExact, PyCapsule_GetName, PyCapsule_GetPointer, PyCapsule_IsValid
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
        HK_READ
        HK_WRITTEN
        HK_BOTH
        HK_SLOTS

    struct hk_view:
        uint64_t tag
        uint64_t length
        const char* data
        size_t avail
        uint32_t took

    struct hk_call:
        uint64_t tag
        void* stream
        int traffic, stays
        uint32_t took
        const char* changes
        size_t nbytes
        char* keep
        size_t* kept
        int whole

    struct hk_channel:
        const hk_channel_ops* ops
        int fd
        short events
        unsigned short late
        int error
        const char* words
        uint32_t* bell

    struct hk_channel_ops:
        long (*send)(hk_channel*, const hk_call*, uint64_t, uint64_t, const void*, size_t) noexcept nogil
        int (*settled)(hk_channel*, const hk_call*) noexcept nogil
        long (*multicast)(hk_channel**, int, const hk_call*, uint64_t, uint64_t, const void*, size_t) noexcept nogil
        int (*peek)(hk_channel*, const hk_call*, hk_view*, size_t) noexcept nogil
        int (*consume)(hk_channel*, const hk_call*, size_t, int) noexcept nogil
        long (*recv)(hk_channel*, const hk_call*, void*, size_t) noexcept nogil
        void (*forget)(hk_channel*) noexcept nogil

    long hk_receive(hk_channel*, const hk_call*, void*, size_t, uint64_t)
    long hk_receive_copied(hk_channel*, const hk_call*, void*, size_t, uint64_t)


cdef inline hk_channel* channel_of(object capsule) except NULL:
    """The channel that a transport gives.  Raises TransportError if its interface is another version's."""
    cdef const char* name = NULL
    if not PyCapsule_IsValid(capsule, HK_CAPSULE):
        from hocket.errors import TransportError
        if PyCapsule_CheckExact(capsule):
            name = PyCapsule_GetName(capsule)
        given = type(capsule).__name__ if name == NULL else name.decode(errors="replace")
        raise TransportError(
            f"a transport returned {given!r} as its channel, but this hocket needs {HK_CAPSULE.decode()!r}: its package was "
            "built for another version of hocket; build it again with this version's transports/channel.h, or install "
            "versions that fit"
        )
    return <hk_channel*>PyCapsule_GetPointer(capsule, HK_CAPSULE)
