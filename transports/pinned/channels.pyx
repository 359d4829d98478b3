"""Channels of GPU memory over host channels, through pinned memory; protocol.h is how.

Control path only: what is done once for a pair of channels.
"""

import time

from cpython.pycapsule cimport PyCapsule_New
from libc.stdint cimport uintptr_t

from hocket.transports.channel cimport HK_CAPSULE, channel_of, hk_channel, hk_channel_ops
from hocket.system.cuda.driver cimport CUevent, Device, hk_device


cdef extern from "transports/pinned/protocol.h" nogil:
    enum:
        HK_P_SLOTS
    size_t HK_P_SLOT_BYTES
    struct hk_p_end:
        hk_channel base
        hk_device* device
        char* slots
        CUevent event[4]
    struct hk_p_sender:
        hk_p_end end
    struct hk_p_receiver:
        hk_p_end end
    const hk_channel_ops hk_p_sender_ops
    const hk_channel_ops hk_p_receiver_ops
    void hk_p_open(hk_p_end*, const hk_channel_ops*, hk_device*, hk_channel*)
    bint hk_p_sender_is_idle(hk_p_sender*)
    bint hk_p_receiver_is_idle(hk_p_receiver*)

SLOT = HK_P_SLOT_BYTES
"""Bytes of a piece that a channel takes at once."""
PATIENCE = 1.0
"""Seconds that streams may take to be through with what a run has left."""


cdef int end_open(hk_p_end* e, const hk_channel_ops* ops, Device device, channel) except -1:
    cdef int i
    cdef uintptr_t handle
    hk_p_open(e, ops, &device.d, channel_of(channel))
    handle = device.alloc_host(HK_P_SLOTS * HK_P_SLOT_BYTES)
    e.slots = <char*>handle
    for i in range(HK_P_SLOTS):
        handle = device.event()
        e.event[i] = <CUevent>handle
    return 0


cdef int end_close(hk_p_end* e, Device device) except -1:
    cdef int i
    for i in range(HK_P_SLOTS):
        if e.event[i] != NULL:
            with device:
                e.device.cuda.cuEventDestroy_v2(e.event[i])     # what it says is not heard
            e.event[i] = NULL
    if e.slots != NULL:
        device.free_host(<uintptr_t>e.slots)
        e.slots = NULL
    return 0


cdef class Pair:
    """The channels to and from one peer."""

    cdef hk_p_sender tx
    cdef hk_p_receiver rx
    cdef Device device
    cdef tuple below        # the host channels' capsules: as long as ours may be used

    def __cinit__(self, Device device, out, in_):
        self.device, self.below = device, (out, in_)
        try:
            end_open(&self.tx.end, &hk_p_sender_ops, device, out)
            end_open(&self.rx.end, &hk_p_receiver_ops, device, in_)
        except BaseException:
            self.free()
            raise

    def capsules(self):
        return PyCapsule_New(&self.tx.end.base, HK_CAPSULE, NULL), PyCapsule_New(&self.rx.end.base, HK_CAPSULE, NULL)

    def is_idle(self):
        """Does nobody use the slots any more?"""
        return hk_p_sender_is_idle(&self.tx) and hk_p_receiver_is_idle(&self.rx)

    def free(self):
        end_close(&self.tx.end, self.device)
        end_close(&self.rx.end, self.device)


cdef class Pinned:
    """Channels between the memory of `device` and any rank.  Cost of each pair: 8 MiB of pinned memory, 8 events."""

    cdef Device device
    cdef list pairs         # all, as the channels are theirs ...
    cdef list held          # ... and those that have slots and events

    def __init__(self, Device device):
        self.device, self.pairs, self.held = device, [], []

    def open(self, out, in_):
        """Channels (to, from) a peer over the host channels to and from it."""
        pair = Pair(self.device, out, in_)
        self.pairs.append(pair)
        self.held.append(pair)
        return pair.capsules()

    def close(self) -> bool:
        """Give back what nobody uses any more: is that all?  If not, ask again.  The channels are not used from now on.

        Streams are waited for, but not for long: one may stand still for ever.
        """
        deadline = time.monotonic() + PATIENCE
        while True:
            for pair in [each for each in self.held if each.is_idle()]:
                pair.free()
                self.held.remove(pair)
            if not self.held or time.monotonic() > deadline:
                return not self.held
            time.sleep(0.001)
