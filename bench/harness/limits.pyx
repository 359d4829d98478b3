"""The limits of the machine itself, for two processes: a cache line there and back, a socket in both directions at
once.

The loops are the plainest ones possible, without hocket's transports.  Only `through` drives a channel of hocket's: one
thread has both its ends; and `fill` and `copy` copy as hocket does.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
from posix.time cimport CLOCK_THREAD_CPUTIME_ID, clock_gettime, timespec

from hocket.transports.channel cimport HK_AGAIN, channel_of, hk_call, hk_channel, hk_view


cdef extern from "system/atomics.h" nogil:
    unsigned int hk_load32(const unsigned int*)
    void hk_store32(unsigned int*, unsigned int)
    void hk_pause()

cdef extern from "system/copy.h" nogil:
    void hk_copy(void*, const void*, size_t)
    void hk_copy_past(char*, const char*, size_t)

cdef extern from "sys/socket.h" nogil:
    ssize_t c_send "send"(int, const void*, size_t, int)
    ssize_t c_recv "recv"(int, void*, size_t, int)
    enum: MSG_DONTWAIT

cdef enum:
    CHUNK = 1 << 18
    LINE = 128


cdef char* memory(array, int flags, size_t* nbytes) except *:
    """Where its bytes are, and how many; not longer than the array."""
    cdef Py_buffer room
    PyObject_GetBuffer(array, &room, flags)
    nbytes[0] = room.len
    PyBuffer_Release(&room)
    return <char*>room.buf


def fill(slot, src, bint past):
    """Copy `src` into a slot, whose address is a multiple of 16, through the caches or `past` them."""
    cdef size_t room, n
    cdef char* to = memory(slot, PyBUF_WRITABLE, &room)
    cdef const char* given = memory(src, PyBUF_SIMPLE, &n)
    if room < n or <size_t>to % 16:
        raise ValueError("the slot is too small, or does not begin at a multiple of 16")
    if past:
        hk_copy_past(to, given, n)
    else:
        hk_copy(to, given, n)


def copy(dst, src, bint ours):
    """Copy `src` to `dst`, as hocket does or by the C library's memcpy."""
    cdef size_t room, n
    cdef char* to = memory(dst, PyBUF_WRITABLE, &room)
    cdef const char* given = memory(src, PyBUF_SIMPLE, &n)
    if room < n:
        raise ValueError("there is too little room")
    if ours:
        hk_copy(to, given, n)
    else:
        memcpy(to, given, n)


def pingpong(shared, int rank, unsigned int first, unsigned int rounds):
    """`rounds` times a cache line to the other process and back; `first` goes up by `rounds` from call to call."""
    cdef size_t room
    cdef char* lines = memory(shared, PyBUF_WRITABLE, &room)
    cdef unsigned int* mine = <unsigned int*>(lines + LINE * rank)
    cdef unsigned int* theirs = <unsigned int*>(lines + LINE * (1 - rank))
    cdef unsigned int i
    with nogil:
        for i in range(first + 1, first + rounds + 1):
            if rank == 0:
                hk_store32(mine, i)
            while hk_load32(theirs) != i:
                hk_pause()
            if rank == 1:
                hk_store32(mine, i)


def duplex(int fd, size_t nbytes):
    """Send and receive `nbytes` over one stream socket, both at once, never waiting in the kernel."""
    cdef char* buffer = <char*>malloc(2 * CHUNK)
    cdef size_t out = nbytes, into = nbytes
    cdef ssize_t n
    if buffer == NULL:
        raise MemoryError
    with nogil:
        while out or into:
            if out:
                n = c_send(fd, buffer, min(out, <size_t>CHUNK), MSG_DONTWAIT)
                if n > 0:
                    out -= n
            if into:
                n = c_recv(fd, buffer + CHUNK, min(into, <size_t>CHUNK), MSG_DONTWAIT)
                if n > 0:
                    into -= n
                elif n == 0:
                    break
    free(buffer)
    if into:
        raise ConnectionError("the other process has closed the socket")


cdef double cpu() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t)
    return t.tv_sec + 1e-9 * t.tv_nsec


def through(out, into, size_t nbytes):
    """Seconds of this thread's CPU time (to send, to receive) one message over a channel, both ends of which it has."""
    cdef hk_channel* tx = channel_of(out)
    cdef hk_channel* rx = channel_of(into)
    cdef char* buffer = <char*>calloc(2, nbytes)
    cdef size_t sent = 0, came = 0
    cdef double t0, t1, sending = 0, receiving = 0
    cdef hk_call call
    cdef hk_view v
    cdef long n = 0
    cdef bint opened = False
    if buffer == NULL:
        raise MemoryError
    memset(&call, 0, sizeof(call))
    call.stays = tx.late
    with nogil:
        while came < nbytes and (n >= 0 or n == HK_AGAIN):
            t0 = cpu()
            if sent < nbytes:
                n = tx.ops.send(tx, &call, nbytes, sent, buffer + sent, nbytes - sent)
                sent += max(n, 0)
            elif tx.ops.settled != NULL:
                tx.ops.settled(tx, &call)
            t1 = cpu()
            sending += t1 - t0
            if not opened:
                n = rx.ops.peek(rx, &call, &v, 0)
                opened = n == 1
            if opened:
                n = rx.ops.recv(rx, &call, buffer + nbytes + came, nbytes - came)
                came += max(n, 0)
            receiving += cpu() - t1
        if came == nbytes:
            n = rx.ops.consume(rx, &call, 0, 1)
        t0 = cpu()
        call.stays = 0
        if tx.ops.settled != NULL and sent == nbytes:
            tx.ops.settled(tx, &call)
        sending += cpu() - t0
    free(buffer)
    if n < 0:
        raise ConnectionError("the channel has ended")
    return sending, receiving
