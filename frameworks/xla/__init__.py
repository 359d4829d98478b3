"""hocket under XLA: what JAX's own collectives call on the CPU, in programs that never heard of hocket.

    names.txt       the names that XLA's loader asks for, with the numbers of MPI's ABI
    library.c       the library that has them: 15 are carried out, each other one says that it is not
    serving.h, .pyx what stands behind the 15: hocket's calls on XLA's buffers
    c_programs.h, .py  the same library in C programs: eleven functions of MPI's, in a Python inside the program

    loading.py      which file, for which jaxlib, by which variables; imports nothing
    programs.py     which groups of devices a compiled program reduces over
    meeting.py      how the ranks of a group meet; store.py: where
    absent.py       who does not come, and whether it may; telling.py: what a process says that it does
"""
