"""What torch's AllreduceOptions say, read where they lie."""

cdef object op_name(object options)         # "sum" and so on; None: ask the general way
cdef bint is_async(object options) except -1
