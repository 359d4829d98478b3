"""Products of a float32 matrix with thin ones (kernels/thin.h), on NumPy arrays."""

import numpy as np

cdef extern from "kernels/thin.h" nogil:
    enum:
        HK_THIN
    void hk_across(const float *m, size_t rows, size_t columns, const float *q, size_t wide, float *p)
    void hk_along(const float *m, size_t rows, size_t columns, const float *p, size_t wide, float *q)
    void hk_apart(float *m, size_t rows, size_t columns, const float *p, const float *q, size_t wide, float *out)
    void hk_orthonormal(double *x, size_t rows, size_t wide)


cdef _filled(x):
    """x with columns of zeros up to a multiple of HK_THIN; contiguous."""
    rows, columns = x.shape
    wide = -(-columns // HK_THIN) * HK_THIN
    if wide == columns and x.flags.c_contiguous:
        return x
    made = np.zeros((rows, wide), np.float32)
    made[:, :columns] = x
    return made


def across(const float[:, ::1] m, q):
    """m @ q, of float32, with the same bits on every machine: (rows, columns) by (columns, few).  One pass over m.

    Raises ValueError: the shapes do not fit.
    """
    cdef const float[:, ::1] thin = np.ascontiguousarray(_filled(q).T)
    made = np.empty((m.shape[0], thin.shape[0]), np.float32)
    cdef float[:, ::1] into = made
    if thin.shape[1] != m.shape[1]:
        raise ValueError(f"m has {m.shape[1]} columns, q {thin.shape[1]} rows")
    if m.shape[0] and m.shape[1] and thin.shape[0]:
        with nogil:
            hk_across(&m[0, 0], m.shape[0], m.shape[1], &thin[0, 0], thin.shape[0], &into[0, 0])
    else:
        made[...] = 0
    return np.ascontiguousarray(made[:, : q.shape[1]])


def along(const float[:, ::1] m, p):
    """m.T @ p, likewise: (rows, columns) and (rows, few) give (columns, few)."""
    cdef const float[:, ::1] thin = _filled(p)
    made = np.empty((thin.shape[1], m.shape[1]), np.float32)
    cdef float[:, ::1] into = made
    if thin.shape[0] != m.shape[0]:
        raise ValueError(f"m has {m.shape[0]} rows, p {thin.shape[0]}")
    if m.shape[0] and m.shape[1] and thin.shape[1]:
        with nogil:
            hk_along(&m[0, 0], m.shape[0], m.shape[1], &thin[0, 0], thin.shape[1], &into[0, 0])
    else:
        made[...] = 0
    return np.ascontiguousarray(made[: p.shape[1]].T)


def apart(float[:, ::1] m, p, q, float[:, ::1] out):
    """out = p @ q.T, and m -= out: m is what p and q do not say of it.  One pass over both.

    Shapes: m and out (rows, columns), p (rows, few), q (columns, few); else ValueError.
    """
    cdef const float[:, ::1] left = _filled(p), right = np.ascontiguousarray(_filled(q).T)
    if (out.shape[0], out.shape[1]) != (m.shape[0], m.shape[1]) or left.shape[1] != right.shape[0] \
            or (left.shape[0], right.shape[1]) != (m.shape[0], m.shape[1]):
        raise ValueError("the shapes of m, p, q and out do not fit together")
    if m.shape[0] and m.shape[1] and left.shape[1]:
        with nogil:
            hk_apart(&m[0, 0], m.shape[0], m.shape[1], &left[0, 0], &right[0, 0], left.shape[1], &out[0, 0])


def orthonormal(p):
    """p with its columns made orthonormal, in their order; one that those before it make up becomes zeros."""
    made = np.array(p, np.float64, order="C")
    cdef double[:, ::1] x = made
    if x.shape[0] and x.shape[1]:
        with nogil:
            hk_orthonormal(&x[0, 0], x.shape[0], x.shape[1])
    return made.astype(np.float32)
