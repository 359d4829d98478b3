/* Module: out = in * factor from one float dtype to another, computed in fp32 and rounded once.
 *
 * HK_FROM and HK_TO are words of elements.h, HK_FROM_DTYPE and HK_TO_DTYPE the names of the dtypes.  What is too large
 * becomes what small_floats.h says: infinity, or NaN in float8_e4m3fn.  May be included once for each pair. */
#include "tiles.cuh"

#include "kernels/factor.h"

#ifndef HOCKET_KERNELS_CAST_CUH
#define HOCKET_KERNELS_CAST_CUH

/* The word that four elements of `bytes` bytes fill. */
template <int bytes> struct hk_four;
template <> struct hk_four<1> { typedef u32 word; };
template <> struct hk_four<2> { typedef uint2 word; };
template <> struct hk_four<4> { typedef uint4 word; };

template <class T> struct alignas(4 * sizeof(T)) hk_quad {
    T at[4];
};

template <class C> HK_DEVICE void hk_cast(void *out, const void *in, u64 count, f32 scale) {
    typedef typename C::source source;
    typedef typename C::target target;
    typedef typename hk_four<sizeof(source)>::word source_word;
    typedef typename hk_four<sizeof(target)>::word target_word;
    const u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x, threads = (u64)gridDim.x * blockDim.x;
    const bool vectors = (u64)in % sizeof(source_word) == 0 && (u64)out % sizeof(target_word) == 0;
    const u64 quads = vectors ? count / 4 : 0;
    for (u64 i = thread; i < quads; i += 2 * threads) { /* two loads are in flight before the first is used */
        const bool two = i + threads < quads;
        hk_quad<source> from[2];
        from[0] = hk_load_as<source_word, hk_quad<source>>((const source *)in + 4 * i);
        if (two)
            from[1] = hk_load_as<source_word, hk_quad<source>>((const source *)in + 4 * (i + threads));
        HK_UNROLL for (int half = 0; half < 2; half++) {
            if (half && !two)
                break;
            hk_quad<target> to;
            HK_UNROLL for (int j = 0; j < 4; j++)
                C::put(to.at, j, C::get(from[half].at, j) * scale);
            hk_store_as<target_word>((target *)out + 4 * (i + half * threads), to);
        }
    }
    for (u64 i = 4 * quads + thread; i < count; i += threads)
        C::put((target *)out, i, C::get((const source *)in, i) * scale);
}

#endif

#define HK_CAST HK_JOIN3(hk_casting, HK_FROM_DTYPE, HK_TO_DTYPE)

struct HK_CAST {
    typedef HK_PASTE(any_, HK_FROM) source;
    typedef HK_PASTE(any_, HK_TO) target;
    HK_INLINE f32 get(const source *p, u64 i) { return HK_PASTE(get_, HK_FROM)(p, i); }
    HK_INLINE void put(target *p, u64 i, f32 value) { HK_PASTE(put_, HK_TO)(p, i, value); }
};

HK_KERNEL(HK_JOIN3(hk_cast, HK_FROM_DTYPE, HK_TO_DTYPE), void *out, const void *in, u64 count, f64 factor) {
    hk_cast<HK_CAST>(out, in, count, hk_small_factor(factor));
}

#undef HK_CAST
