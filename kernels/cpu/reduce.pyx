"""Arithmetic on bytes: the C kernels of kernels/cpu/reduce.h behind two lookups and two calls on NumPy arrays.

Holds no arithmetic and no table; the only state is the level in use, chosen from the CPU at import.
"""

import numpy

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from hocket.errors import ArgumentError
from hocket.kernels.dtypes import from_numpy
from hocket.kernels.ops import lookup

cdef extern from "kernels/cpu/reduce.h" nogil:
    cdef struct hk_level:
        const char *name
        const char *features
        const hk_codec *codecs
    const hk_level hk_levels[1]
    int hk_level_count()
    reduce_fn hk_find_reduce(const hk_level *level, int dtype, int op)
    apply_fn hk_find_apply(const hk_level *level, int dtype, int to)

cdef enum:
    PIECE = 61440               # HK_PIECE: memory bytes of one

cdef const hk_level *_level = &hk_levels[hk_level_count() - 1]


cdef reduce_fn find_reduce(int dtype, int op) noexcept nogil:
    return hk_find_reduce(_level, dtype, op)


cdef apply_fn find_apply(int dtype, int to) noexcept nogil:
    return hk_find_apply(_level, dtype, to)


cdef hk_codec find_codec(codec):
    cdef hk_codec made = _level.codecs[<int>codec.code]
    made.block, made.nbytes, made.seed = codec.block, codec.itemsize, codec.seed
    made.bits, made.levels, made.norm, made.clip = codec.bits, codec.levels, codec.norm, codec.clip
    made.stochastic = codec.stochastic
    made.dtype, made.words, made.base = codec.dtype, codec.words, codec.base
    made.rows, made.stride, made.divisor = codec.rows, codec.stride, codec.divisor
    return made


def features():
    """The level in use and the CPU features it needs, such as "avx2: avx2 f16c"."""
    return f"{_level.name.decode()}: {_level.features.decode()}"


def levels():
    """The levels this CPU can run, worst first; the last one is in use unless `use_level` said otherwise."""
    return tuple(hk_levels[i].name.decode() for i in range(hk_level_count()))


def use_level(name):
    """Find kernels at another level from now on.  For tests and benchmarks: every level gives the same bits."""
    global _level
    names = levels()
    if name not in names:
        raise ArgumentError(f"this CPU cannot run the level {name!r}; it can run {', '.join(names)}")
    _level = &hk_levels[names.index(name)]


def reduce_arrays(out, inputs, op):
    """out = inputs[0] op inputs[1] op ..., left to right, on contiguous NumPy arrays of one dtype and shape.

    (k + 1) n bytes of memory traffic for k inputs.
    """
    cdef int k = len(inputs)
    if k == 0:
        raise ArgumentError("a reduction needs at least one input, got 0")
    dtype = from_numpy(out.dtype)
    cdef reduce_fn function = find_reduce(dtype.code, lookup(op, dtype))
    cdef void *target = <void *><size_t>_writable(out)
    cdef size_t count = out.size
    cdef const void **sources = _sources(out, inputs)
    with nogil:
        function(target, sources, k, count)
        free(sources)


def encode_array(out, x, codec, key=0, residual=None):
    """The elements of `codec` for a float32 array, into a uint8 array of codec.nbytes(n).

    `key`: of the random numbers of a codec that rounds by them.  `residual`: (before, after), float32 arrays like x: what
    is encoded is x + before, and after = x + before - what the elements stand for.  `before` may be None, for zeros;
    `after` may be x or `before`.
    """
    _code(out, x, codec, False, key, residual)


def decode_array(out, x, codec):
    """A float32 array from the elements of `codec` in a uint8 array."""
    _code(out, x, codec, True, 0, None)


cdef hk_residual _residual(pair, count) except *:
    """Two addresses; NULL twice where there is no pair."""
    cdef hk_residual found
    before, after = (None, None) if pair is None else pair
    for each in (before, after):
        if each is not None and (each.dtype != "float32" or each.size != count or not each.flags.c_contiguous):
            raise ArgumentError(f"a residual must be {count} float32, C-contiguous; got {each.dtype}{each.shape}")
    found.before = NULL if before is None else <const void *><size_t>_address(before)
    found.after = NULL if after is None else <void *><size_t>_writable(after)
    return found


cdef int _code(out, x, codec, bint decodes, uint64_t key, pair) except -1:
    cdef hk_codec c = find_codec(codec)
    floats, encoded = (out, x) if decodes else (x, out)
    for array, dtype, size in ((encoded, "uint8", codec.nbytes(floats.size)), (floats, "float32", floats.size)):
        if array.dtype != dtype or array.size != size or not array.flags.c_contiguous:
            raise ArgumentError(f"{codec.name} converts between n float32 and ceil(n / {codec.block}) * {codec.itemsize} uint8, "
                                f"both C-contiguous; got {floats.dtype}{floats.shape} and {encoded.dtype}{encoded.shape}")
    cdef void *target = <void *><size_t>_writable(out)
    cdef const void *source = <const void *><size_t>_address(x)
    cdef size_t count = floats.size
    cdef hk_residual residual = _residual(pair, floats.size)
    with nogil:
        if decodes:
            c.decode(&c, target, source, count, 1.0)
        elif residual.after != NULL:
            c.encode_residual(&c, target, source, count, residual, hk_dice(key, 0))
        else:
            c.encode(&c, target, source, count, 1.0, hk_dice(key, 0))
    return 0


def fold_arrays(out, inputs, codec, count=None, key=0, residual=None):
    """out = the sum of the inputs, uint8 arrays of elements of `codec`: decoded, added left to right, encoded once.

    They stand for `count` floats; for whole blocks if it is None.  `residual`: (before, after), as in `encode_array`.
    """
    cdef hk_codec c = find_codec(codec)
    cdef int k = len(inputs)
    floats = out.size // codec.itemsize * codec.block if count is None else count
    if k == 0 or codec.nbytes(floats) != out.size:
        raise ArgumentError(
            f"{k} arrays of {out.size} bytes cannot be summed as {codec.name}, whose elements have {codec.itemsize} "
            "bytes"
        )
    cdef void *target = <void *><size_t>_writable(out)
    cdef hk_residual left = _residual(residual, floats)
    cdef const void **sources = _sources(out, inputs)
    cdef hk_dice dice = hk_dice(key, 0)
    cdef size_t length = floats
    with nogil:
        if left.after != NULL:
            c.fold_residual(&c, target, sources, k, length, left, dice)
        else:
            c.fold(&c, target, sources, k, length, dice)
        free(sources)


def scale_array(out, x, factor):
    """out = x * factor, on contiguous NumPy arrays of one shape, and of one dtype.

    Or one is float32 and the other a smaller float, and they lie apart.  Each element is read and written once.
    """
    dtype, source_dtype = from_numpy(out.dtype), from_numpy(x.dtype)
    cdef apply_fn function = find_apply(source_dtype.code, dtype.code)
    if function == NULL and dtype is source_dtype:
        raise ArgumentError(f"only numbers can be scaled, got {dtype.name}")
    if function == NULL:
        raise ArgumentError(f"{source_dtype.name} cannot be converted to {dtype.name}")
    if x.shape != out.shape:
        raise ArgumentError(f"x has shape {x.shape}, out {out.shape}; they must be the same")
    cdef void *target = <void *><size_t>_writable(out)
    cdef const void *source = <const void *><size_t>_like(x, out if dtype is source_dtype else x, 0)
    cdef size_t count = out.size
    cdef double by = factor
    with nogil:
        function(target, source, count, by)


def pack_array(x, codec):
    """x in pieces of a codec that packs, each behind its length (u32), as a new uint8 array."""
    cdef hk_codec c = find_codec(codec)
    cdef size_t n = x.nbytes, at = 0, used = 0, taken = 0, length
    out = numpy.empty(n + (n // PIECE + 1) * 32 + 16, numpy.uint8)
    cdef unsigned char *to = <unsigned char *><size_t>_writable(out)
    cdef const unsigned char *source = <const unsigned char *><size_t>_address(x)
    if c.pack == NULL or not x.flags.c_contiguous or x.itemsize != codec.itemsize:
        raise ArgumentError(f"{codec.name} packs C-contiguous arrays of {codec.itemsize} bytes an element")
    with nogil:
        while at < n:
            length = c.pack(&c, to + used + 4, PIECE + 4096, source + at, n - at, &taken)
            (<uint32_t *>(to + used))[0] = <uint32_t>length
            used += 4 + length
            at += taken
    return out[:used].copy()


def unpack_array(out, wire, codec):
    """Fill `out` from what `pack_array` made of an array of its size.  Raises ArgumentError if `wire` is not that."""
    cdef hk_codec c = find_codec(codec)
    cdef size_t n = out.nbytes, end = wire.size, at = 0, done = 0, length = 0
    cdef unsigned char *to = <unsigned char *><size_t>_writable(out)
    cdef const unsigned char *source = <const unsigned char *><size_t>_address(wire)
    cdef long made = 0
    cdef unsigned char *room = <unsigned char *>malloc(PIECE)
    if room == NULL:
        raise MemoryError()
    with nogil:
        while done < n and end - at > 4:
            length = (<const uint32_t *>(source + at))[0]
            if length > end - at - 4:
                break
            made = c.unpack(&c, room, source + at + 4, length)
            if made <= 0 or <size_t>made > n - done:
                break
            memcpy(to + done, room, made)
            done += made
            at += 4 + length
        free(room)
    if done < n or at < end:
        raise ArgumentError(f"these {end} bytes are not {n} bytes that {codec.name} has packed")


cdef const void **_sources(out, inputs) except NULL:
    """The addresses of the inputs; the caller's, to be freed."""
    addresses = [_like(x, out, i) for i, x in enumerate(inputs)]
    cdef const void **sources = <const void **>malloc(len(addresses) * sizeof(void *))
    cdef size_t i
    if sources == NULL:
        raise MemoryError()
    for i in range(len(addresses)):
        sources[i] = <const void *><size_t>addresses[i]
    return sources


cdef size_t _address(array):
    # The interface, unlike the buffer protocol, also describes the dtypes of ml_dtypes.
    return array.__array_interface__["data"][0]


cdef size_t _writable(out) except? 0:
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise ArgumentError("out must be C-contiguous and writable")
    return _address(out)


cdef size_t _like(x, out, int i) except? 0:
    """The address of input `i`, if it has the dtype and shape of `out` and is `out` or apart from it."""
    if x.dtype != out.dtype or x.shape != out.shape or not x.flags.c_contiguous:
        layout = "" if x.flags.c_contiguous else " (not C-contiguous)"
        raise ArgumentError(
            f"input {i} is {x.dtype}{x.shape}{layout}; out is {out.dtype}{out.shape}; they must be alike and C-contiguous"
        )
    cdef size_t source = _address(x), target = _address(out), size = out.nbytes
    if source != target and source < target + size and target < source + size:
        raise ArgumentError(f"input {i} overlaps out in part; pass out itself, or separate memory")
    return source
