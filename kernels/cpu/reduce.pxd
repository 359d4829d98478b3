"""Arithmetic on bytes for Cython callers: find a kernel once per plan, call it without the GIL.

The codes are those of kernels/dtypes.h and kernels/ops.h, which kernels/dtypes.py and kernels/ops.py describe.

A `reduce_fn(out, inputs, k, count)` computes out = inputs[0] op ... op inputs[k-1], left to right; k >= 1, and k == 1
copies.  `out` may be exactly one of the inputs and must not overlap one otherwise.  Any alignment.
(k + 1) * count * itemsize bytes of memory traffic.

An `apply_fn(out, x, count, factor)` computes out = x * factor, stored as the same dtype or as another; `out` may be `x` if
it is the same.  Integers round toward zero and saturate; a factor of 1.0 / n divides them by n exactly.
"""

from libc.stdint cimport uint32_t, uint64_t

cdef extern from "kernels/dice.h" nogil:
    ctypedef struct hk_dice:
        uint64_t key
        uint32_t first
    uint64_t hk_stir(uint64_t key, uint64_t other)

cdef extern from "kernels/cpu/codec.h" nogil:
    ctypedef struct hk_residual:
        const void *before
        void *after
    ctypedef struct hk_codec:
        void (*encode)(const hk_codec *, void *, const void *, size_t, double, hk_dice) noexcept nogil
        void (*decode)(const hk_codec *, void *, const void *, size_t, double) noexcept nogil
        void (*fold)(const hk_codec *, void *, const void *const *, int, size_t, hk_dice) noexcept nogil
        void (*encode_residual)(const hk_codec *, void *, const void *, size_t, hk_residual, hk_dice) noexcept nogil
        void (*fold_residual)(const hk_codec *, void *, const void *const *, int, size_t, hk_residual, hk_dice) noexcept nogil
        size_t block, nbytes
        uint64_t seed
        int bits, levels, norm, stochastic
        float clip
        int dtype, words, base
        size_t rows, stride
        double divisor
        size_t (*pack)(const hk_codec *, unsigned char *, size_t, const unsigned char *, size_t, size_t *) noexcept nogil
        long (*unpack)(const hk_codec *, unsigned char *, const unsigned char *, size_t) noexcept nogil
        long (*count)(const hk_codec *, const unsigned char *, size_t) noexcept nogil
    void hk_add_residual(void *out, const void *x, size_t, hk_residual)

ctypedef void (*reduce_fn)(void *, const void *const *, int, size_t) noexcept nogil
ctypedef void (*apply_fn)(void *, const void *, size_t, double) noexcept nogil

# The kernel for a dtype and an op at the level in use; NULL if they have none.
cdef reduce_fn find_reduce(int dtype, int op) noexcept nogil

# Those of a codec (kernels/codecs.py), with its parameters.
cdef hk_codec find_codec(codec)

# The kernel that scales a dtype, and stores it as one of `to`; NULL for bool, pairs and bytes.  Dtypes that differ must be
# float32 and float16 or bfloat16, either way.
cdef apply_fn find_apply(int dtype, int to) noexcept nogil
