"""Boxes of memory are copied by a table: of thousands of small parts a line each, in one call without the GIL."""

from libc.stdint cimport int64_t, uintptr_t
from libc.string cimport memcpy

cdef enum: AXES = 3         # of a line, beside its rows of bytes
cdef enum: LINE = 3 + 3 * AXES


cdef inline void copy_row(char* to, const char* of, int64_t n) noexcept nogil:
    # a constant length is a move of a register
    if n == 4:
        memcpy(to, of, 4)
    elif n == 8:
        memcpy(to, of, 8)
    elif n == 2:
        memcpy(to, of, 2)
    elif n == 1:
        to[0] = of[0]
    elif n == 16:
        memcpy(to, of, 16)
    else:
        memcpy(to, of, n)


cdef void copy_line(const int64_t* line, uintptr_t of, uintptr_t to) noexcept nogil:
    cdef int64_t a, b, c
    cdef const char *from_a, *from_b, *from_c
    cdef char *to_a, *to_b, *to_c
    from_a, to_a = <const char*>(of + <uintptr_t>line[0]), <char*>(to + <uintptr_t>line[1])
    for a in range(line[3]):
        from_b, to_b = from_a, to_a
        for b in range(line[6]):
            from_c, to_c = from_b, to_b
            for c in range(line[9]):
                copy_row(to_c, from_c, line[2])
                from_c += line[10]
                to_c += line[11]
            from_b += line[7]
            to_b += line[8]
        from_a += line[4]
        to_a += line[5]


def copy(const int64_t[:, ::1] table, uintptr_t of=0, uintptr_t to=0):
    """Copy by each line: (from, to, bytes of a row, and of each of three axes its length and its two strides).

    `of` and `to` are added to the addresses: those of a line are then offsets.  Nobody checks them.
    """
    cdef Py_ssize_t i
    if table.shape[0] and table.shape[1] != LINE:
        raise ValueError(f"a line has {LINE} numbers, got {table.shape[1]}")
    with nogil:
        for i in range(table.shape[0]):
            copy_line(&table[i, 0], of, to)
