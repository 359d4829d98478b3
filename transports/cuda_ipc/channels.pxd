"""Channels between GPU memories as Cython sees them; protocol.h and registered.h are their documentation."""

from libc.stdint cimport uint16_t, uint32_t, uint64_t

from hocket.transports.channel cimport hk_channel
from hocket.system.cuda.driver cimport CUevent, CUipcMemHandle, CUstream, Device, hk_cuda, hk_device
from hocket.system.cuda.shared cimport Shared


cdef extern from "transports/cuda_ipc/pair.h" nogil:
    struct hk_mark:
        CUevent event
        uint64_t word
    struct hk_r_memory:
        uint64_t at
        size_t size
        CUipcMemHandle handle
    struct hk_r_ours:
        hk_r_memory memory[64]
        uint32_t count
    struct hk_r_peer:
        uint64_t at[64]
    enum:
        HK_R_MOST

    enum:
        HK_C_SLOTS, HK_C_SHARED, HK_C_ALL, HK_C_BYE, HK_C_WORDS
    size_t HK_C_SLOT_BYTES
    struct hk_c_end:
        hk_channel base
    struct hk_c_packet:
        uint16_t kind
    struct hk_c_pair:
        hk_c_end tx, rx
        int ended, bye
        hk_mark ready[12]
        hk_mark peer_done[12]
        const char* theirs
        const char* their_shared
        hk_mark peer_ready[12]
        hk_mark done[12]
        hk_r_peer registered
    struct hk_c_common:
        hk_device* device
        char* window
        int size
        hk_c_pair** pair
        hk_r_ours registered
    int hk_c_release(hk_c_pair*, void*)
    void hk_c_open(hk_c_pair*, hk_c_common*, int, hk_channel*, hk_channel*)
    void hk_c_post(hk_c_pair*, hk_c_packet)
    void hk_c_pump(hk_c_pair*)


cdef class CudaChannels:
    cdef const hk_cuda* cuda
    cdef Device device
    cdef int index
    cdef Shared window
    cdef dict mapped
    cdef list below         # the host channels' capsules: as long as ours may be used
    cdef list events        # ours; or, if there are words, none
    cdef readonly bint words
    cdef CUstream escape    # ends waits for words
    cdef hk_c_common common
    cdef hk_c_pair* pairs
    cdef list _handles(self, hk_mark* marks, int n, int peer)
    cdef int _make_events(self) except -1
    cdef uint64_t _word(self, uint64_t window, int of)
    cdef CUevent _event(self) except NULL
