"""The functions of the MPI library that mpi4py has loaded.  Policy is in job.py."""

import ctypes
import platform

from libc.stdint cimport uint32_t, uintptr_t
from libc.stdlib cimport calloc

from hocket.errors import TransportError


cdef extern from "system/atomics.h" nogil:
    void hk_store32(uint32_t*, uint32_t)

cdef pthread_mutex_t turns      # of the process, as MPI's thread level is
pthread_mutex_init(&turns, NULL)

MACHINES = ("x86_64", "aarch64")
"""Where an int and a pointer are passed in the same register; see library.h."""
FUNCTIONS = ("issend", "irecv", "recv_init", "start", "test", "cancel", "request_free", "error_string")
"""In the order of the struct."""


cdef class Mpi:
    """The library behind `MPI`, the module mpi4py.MPI.  One per process is enough.

    `serial`: take turns with the other threads of this process that come through here.
    """

    def __cinit__(self, MPI, bint serial=False):
        cdef uintptr_t* places
        if platform.machine() not in MACHINES:
            raise TransportError(f"MPI can be called on {', '.join(MACHINES)}, not on {platform.machine()}")
        self.MPI, self.library = MPI, ctypes.CDLL(MPI.__file__)     # its dependencies are searched too
        self.table = <hk_mpi*>calloc(1, sizeof(hk_mpi))
        if self.table == NULL:
            raise MemoryError
        places = <uintptr_t*>self.table
        for i, name in enumerate(FUNCTIONS):
            places[i] = self.find(f"MPI_{name.capitalize()}")
            if not places[i]:
                raise TransportError(f"the MPI library that mpi4py uses has no MPI_{name.capitalize()}")
        self.table.byte, self.table.request_null = MPI.BYTE.handle, MPI.REQUEST_NULL.handle
        self.table.in_place = <uintptr_t><long long>int(MPI.IN_PLACE)
        self.table.turns = &turns if serial else NULL

    cdef uintptr_t find(self, str name) except? 0:
        """Where a function is, 0 if the library has none of that name."""
        function = getattr(self.library, name, None)
        return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value

    def has(self, str name):
        return self.find(name) != 0

    def asked(self, str name):
        """The answer of `int name(void)`; None if the library has no such function."""
        function = getattr(self.library, name, None)
        return None if function is None else function()

    def end(self):
        """MPI_Finalize has begun."""
        hk_store32(&self.table.over, 1)

    @property
    def over(self):
        return bool(self.table.over)
