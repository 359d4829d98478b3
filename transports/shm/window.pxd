cdef enum:
    PAGE = 4096
    TOKEN = 32          # bytes at offset 0: proves that a descriptor that came by is the promised window
    BELL = 128          # offset of the two words that the owner sleeps on
    FIRST = 8192        # the first byte that can be allocated


cdef class Window:
    cdef readonly int fd
    cdef readonly size_t reserved, size
    cdef readonly bytes token
    cdef public int node    # the NUMA node that its owner runs on; -1: none, or several
    cdef char* base
    cdef bint private
    cdef object lock        # threads allocate at once; `release` is called by finalizers, also in the middle of `alloc`
    cdef list holes         # (bytes, offset, node) given back
    cdef list retired       # (addresses of readers' words, blocks) of channels that were closed, but may still be read

    cdef void _place(self, size_t offset, size_t nbytes, int node)
    cdef int _map(self, size_t reserve) except -1
    cdef size_t _proven_size(self) except 0
    cdef void retire(self, list words, list blocks)
    cdef _take_back(self)
    cdef size_t end(self) except 0
