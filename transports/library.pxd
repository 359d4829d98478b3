"""Another library's collective, as Cython sees it; library.h is its documentation."""

cdef extern from "transports/library.h" nogil:
    const char* HK_LIBRARY_CAPSULE

    struct hk_library:
        int (*call)(hk_library*, void*, void*) noexcept nogil
        int (*start)(hk_library*, void*, void*) noexcept nogil
        int (*test)(hk_library*) noexcept nogil
        char why[512]
