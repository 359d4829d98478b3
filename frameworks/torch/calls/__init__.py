"""A call under torch's name and with torch's options, and what comes of it.

    collectives.py  their collectives and messages
    names.py        what methods are called in which version of torch
    issuing.py      at once or with a Work, by itself or with others
    ops.py          torch's ReduceOp in hocket's words
    tensors.py      tensors as hocket takes them: plain, contiguous, one behind the other
    quick.pyx       the short way of an all_reduce that was made before
    works.py        torch's Work and Future over hocket's Work
    streams.py      CUDA tensors: what comes after a call, in its stream
"""
