"""Counts of a v-variant as a part of what a call asks for: the same ones are known again."""

from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.sequence cimport PySequence_Fast_GET_ITEM, PySequence_Fast_GET_SIZE
from libc.stdint cimport uintptr_t


cdef inline tuple copied(object counts):
    """A copy of a v-variant's counts, as the caller may change its list; alltoallv has two of them."""
    if counts is None:
        return None
    return tuple([copied(each) if isinstance(each, (list, tuple)) else each for each in counts])


cdef inline bint equal(object counts, tuple known) except -1:
    """Are these counts, as the caller gives them, the known ones?  Only lists and tuples of ints can be."""
    cdef Py_ssize_t i, n
    if known is None or (type(counts) is not list and type(counts) is not tuple):
        return False
    n = len(known)
    if PySequence_Fast_GET_SIZE(counts) != n:
        return False
    for i in range(n):
        given = <object>PySequence_Fast_GET_ITEM(counts, i)
        one = known[i]
        if type(one) is tuple:
            if not equal(given, <tuple>one):
                return False
        elif type(given) is not int or given != one:
            return False
    return True


cdef inline uintptr_t mixed(object counts) except? 1:
    """A hash of counts, so that calls with other counts have other places in the table."""
    cdef uintptr_t h = 7
    cdef int beyond = 0
    cdef Py_ssize_t i
    if type(counts) is not list and type(counts) is not tuple:
        return h
    for i in range(PySequence_Fast_GET_SIZE(counts)):
        each = <object>PySequence_Fast_GET_ITEM(counts, i)
        h = h * 31 + (<uintptr_t>PyLong_AsLongLongAndOverflow(each, &beyond) if type(each) is int else mixed(each))
    return h
