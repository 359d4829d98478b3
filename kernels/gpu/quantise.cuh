/* Module: block quantisation, 256 elements to 256 bytes and one fp32 scale, and back.
 *
 * HK_WIDE is f32, f16 or bf16 and HK_CODE i8 or e4m3fn (words of elements.h), HK_WIDE_DTYPE and HK_CODE_DTYPE the names
 * of the dtypes, HK_LARGEST the largest code: 127 or 448.  May be included once for each pair.
 *
 * The scale of a block is the largest magnitude in it / HK_LARGEST; a code is element / scale, rounded to nearest, ties
 * to even, all in fp32.  A block of zeros, or one whose scale underflows, has scale 0 and codes 0.  A block that holds a
 * NaN or an infinity has a scale that is neither zero nor finite, and comes back as NaN.  The last block may be short. */
#include "tiles.cuh"

#ifndef HOCKET_KERNELS_QUANTISE_CUH
#define HOCKET_KERNELS_QUANTISE_CUH

enum { HK_GROUP = 256, HK_WARP = 32, HK_EACH = HK_GROUP / HK_WARP };

typedef i8 any_code_i8;

HK_INLINE f32 get_code_i8(const i8 *p, u64 i) {
    return (f32)p[i];
}

HK_INLINE void put_code_i8(i8 *p, u64 i, f32 value) {
    f32 whole = rintf(value);
    whole = whole > 127 ? 127 : whole;
    whole = whole < -127 ? -127 : whole;
    p[i] = (i8)(whole != whole ? 0 : whole);
}

typedef any_e4m3fn any_code_e4m3fn;

HK_INLINE f32 get_code_e4m3fn(const any_e4m3fn *p, u64 i) {
    return get_e4m3fn(p, i);
}

/* No scaled element is above 448, unless the scale is subnormal and coarse. */
HK_INLINE void put_code_e4m3fn(any_e4m3fn *p, u64 i, f32 value) {
    value = value > 448 ? 448 : value;
    value = value < -448 ? -448 : value;
    put_e4m3fn(p, i, value);
}

/* What one lane holds of a group. */
template <class T> struct hk_run {
    T at[HK_EACH];
};

/* A run moves by 8 bytes of codes, or by 16 of anything else. */
template <class T> struct hk_run_word { typedef uint4 type; };
template <> struct hk_run_word<any_code_i8> { typedef uint2 type; };
template <> struct hk_run_word<any_code_e4m3fn> { typedef uint2 type; };

template <class T> struct hk_run_part {
    typedef typename hk_run_word<T>::type word;
    T at[sizeof(word) / sizeof(T)];
};

template <class T> HK_DEVICE bool hk_is_run(const T *at) {
    return (u64)at % sizeof(typename hk_run_word<T>::type) == 0;
}

/* The first `count` of eight elements, all of them in words if they are `whole`. */
template <class T> HK_DEVICE hk_run<T> hk_load_run(const T *from, u64 count, bool whole) {
    typedef hk_run_part<T> part;
    const int each = sizeof(part) / sizeof(T);
    hk_run<T> run;
    if (whole && count >= HK_EACH) {
        HK_UNROLL for (int i = 0; i < HK_EACH; i += each) {
            part some = hk_load_as<typename part::word, part>(from + i);
            HK_UNROLL for (int j = 0; j < each; j++)
                run.at[i + j] = some.at[j];
        }
    } else {
        HK_UNROLL for (int j = 0; j < HK_EACH; j++)
            run.at[j] = (u64)j < count ? from[j] : T();
    }
    return run;
}

template <class T> HK_DEVICE void hk_store_run(T *to, const hk_run<T> &run, u64 count, bool whole) {
    typedef hk_run_part<T> part;
    const int each = sizeof(part) / sizeof(T);
    if (whole && count >= HK_EACH) {
        HK_UNROLL for (int i = 0; i < HK_EACH; i += each) {
            part some;
            HK_UNROLL for (int j = 0; j < each; j++)
                some.at[j] = run.at[i + j];
            hk_store_as<typename part::word>(to + i, some);
        }
    } else {
        HK_UNROLL for (int j = 0; j < HK_EACH; j++)
            if ((u64)j < count)
                to[j] = run.at[j];
    }
}

/* Warp w of the grid takes the groups w, w + warps, ...; lane l elements 8l to 8l + 7 of each. */
struct hk_warp {
    u64 group, stride;
    u32 lane;
    HK_DEVICE hk_warp()
        : group(((u64)blockIdx.x * blockDim.x + threadIdx.x) / HK_WARP), stride((u64)gridDim.x * blockDim.x / HK_WARP),
          lane(threadIdx.x % HK_WARP) {}
};

template <class Q>
HK_DEVICE void hk_quantise(typename Q::code *codes, f32 *scales, const typename Q::wide *in, u64 count, f32 largest) {
    const bool whole_in = hk_is_run(in), whole_codes = hk_is_run(codes);
    const hk_warp warp;
    for (u64 group = warp.group; group * HK_GROUP < count; group += warp.stride) {
        const u64 at = group * HK_GROUP + warp.lane * HK_EACH, mine = at < count ? count - at : 0;
        auto run = hk_load_run(in + at, mine, whole_in);
        f32 top = 0;
        HK_UNROLL for (int j = 0; j < HK_EACH; j++)
            top = max_f32(top, fabsf(Q::get_wide(run.at, j)));
        for (int distance = HK_WARP / 2; distance; distance /= 2)
            top = max_f32(top, __shfl_xor_sync(0xffffffffu, top, distance)); /* carries a NaN, unlike fmaxf */
        const f32 scale = top / largest;
        hk_run<typename Q::code> code;
        HK_UNROLL for (int j = 0; j < HK_EACH; j++)
            Q::put_code(code.at, j, scale == 0 ? 0 : Q::get_wide(run.at, j) / scale);
        hk_store_run(codes + at, code, mine, whole_codes);
        if (warp.lane == 0)
            scales[group] = scale;
    }
}

/* In registers, from rank 0 up.  The sum starts with rank 0's value, as 0 + -0 would be 0. */
template <class Q>
HK_DEVICE void hk_dequantise(typename Q::wide *out, const hk_pointers &codes, const hk_pointers &scales, u64 count, int k) {
    typedef typename Q::code code;
    bool whole = true;
    for (int r = 0; r < k; r++)
        whole = whole && hk_is_run((const code *)codes.at[r]);
    const bool whole_out = hk_is_run(out);
    const hk_warp warp;
    for (u64 group = warp.group; group * HK_GROUP < count; group += warp.stride) {
        const u64 at = group * HK_GROUP + warp.lane * HK_EACH, mine = at < count ? count - at : 0;
        f32 sum[HK_EACH];
        for (int r = 0; r < k; r++) {
            auto run = hk_load_run((const code *)codes.at[r] + at, mine, whole);
            const f32 scale = ((const f32 *)scales.at[r])[group];
            HK_UNROLL for (int j = 0; j < HK_EACH; j++) {
                f32 value = Q::get_code(run.at, j) * scale;
                sum[j] = r == 0 ? value : sum[j] + value;
            }
        }
        hk_run<typename Q::wide> run;
        HK_UNROLL for (int j = 0; j < HK_EACH; j++)
            Q::put_wide(run.at, j, sum[j]);
        hk_store_run(out + at, run, mine, whole_out);
    }
}

#endif

#define HK_QUANTISED HK_JOIN3(hk_quantised, HK_WIDE_DTYPE, HK_CODE_DTYPE)

struct HK_QUANTISED {
    typedef HK_PASTE(any_, HK_WIDE) wide;
    typedef HK_PASTE(any_code_, HK_CODE) code;
    HK_INLINE f32 get_wide(const wide *p, u64 i) { return HK_PASTE(get_, HK_WIDE)(p, i); }
    HK_INLINE void put_wide(wide *p, u64 i, f32 value) { HK_PASTE(put_, HK_WIDE)(p, i, value); }
    HK_INLINE f32 get_code(const code *p, u64 i) { return HK_PASTE(get_code_, HK_CODE)(p, i); }
    HK_INLINE void put_code(code *p, u64 i, f32 value) { HK_PASTE(put_code_, HK_CODE)(p, i, value); }
};

/* codes: `count` bytes; scales: one f32 per 256 elements begun.  Whole warps only. */
HK_KERNEL(HK_JOIN3(hk_quantise, HK_WIDE_DTYPE, HK_CODE_DTYPE), void *codes, f32 *scales, const void *in, u64 count) {
    typedef HK_QUANTISED Q;
    hk_quantise<Q>((Q::code *)codes, scales, (const Q::wide *)in, count, HK_LARGEST);
}

/* out = codes[0] * scales[0] + ... + codes[k-1] * scales[k-1], left to right in fp32, rounded once; 1 <= k <= 8. */
HK_KERNEL(HK_JOIN3(hk_dequantise, HK_WIDE_DTYPE, HK_CODE_DTYPE), void *out, HK_PARAM(hk_pointers) codes,
          HK_PARAM(hk_pointers) scales, u64 count, i32 k) {
    typedef HK_QUANTISED Q;
    hk_dequantise<Q>((Q::wide *)out, codes, scales, count, k);
}

#undef HK_QUANTISED
