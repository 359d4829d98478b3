"""NCCL's calls as Cython sees them; nccl.h is their documentation."""

from libc.stdint cimport uint64_t, uintptr_t


cdef extern from "system/cuda/nccl.h" nogil:
    struct hk_nccl:
        pass
    struct hk_nccl_call:
        uintptr_t function
        uint64_t word[8]
        int words
    int hk_nccl_issue(hk_nccl*, const hk_nccl_call*, void*, void*, void*, uint64_t, char*, size_t)
