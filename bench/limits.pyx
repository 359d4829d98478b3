"""What the machine itself can do, for two processes: a cache line there and back, a socket in both directions at once.

The loops are the plainest ones possible; nothing of hocket's transports is in them.
"""

from libc.stdlib cimport free, malloc


cdef extern from "transports/atomics.h" nogil:
    unsigned int hk_load32(const unsigned int*)
    void hk_store32(unsigned int*, unsigned int)
    void hk_pause()

cdef extern from "sys/socket.h" nogil:
    ssize_t c_send "send"(int, const void*, size_t, int)
    ssize_t c_recv "recv"(int, void*, size_t, int)
    enum: MSG_DONTWAIT

cdef enum:
    CHUNK = 1 << 18
    LINE = 128


def pingpong(unsigned char[::1] shared, int rank, unsigned int first, unsigned int rounds):
    """`rounds` times a cache line to the other process and back; `first` goes up by `rounds` from call to call."""
    cdef unsigned int* mine = <unsigned int*>&shared[LINE * rank]
    cdef unsigned int* theirs = <unsigned int*>&shared[LINE * (1 - rank)]
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
