/* The kinds of codecs, for a warp: how a block of floats becomes an element, and an element four floats.  codec.cuh has the
 * kernels, and says how they work. */
#ifndef HOCKET_KERNELS_CODEC_KINDS_CUH
#define HOCKET_KERNELS_CODEC_KINDS_CUH

#include "tiles.cuh"

#include "kernels/codes.h"
#include "kernels/factor.h"
#include "kernels/pack.h"

enum { HK_WARP = 32, HK_WARPS = 8 };

/* Four floats in a row, of a place that is a multiple of four. */
typedef hk_pack<f32> hk_four_floats;

HK_DEVICE hk_four_floats hk_get_four(const f32 *x) {
    return hk_load_as<uint4, hk_four_floats>(x);
}

/* Floats i to i + 3 of the n at x; 0 for those behind. */
HK_DEVICE hk_four_floats hk_get_some(const f32 *x, int i, int n, bool vectors) {
    if (vectors && i + 4 <= n)
        return hk_get_four(x + i);
    hk_four_floats four;
    HK_UNROLL for (int j = 0; j < 4; j++)
        four.at[j] = i + j < n ? x[i + j] : 0;
    return four;
}

HK_DEVICE void hk_put_some(f32 *x, int i, int n, bool vectors, const hk_four_floats &four) {
    if (vectors && i + 4 <= n)
        hk_store_as<uint4>(x + i, four);
    else
        for (int j = 0; j < 4 && i + j < n; j++)
            x[i + j] = four.at[j];
}

/* A warp's block: the floats, those behind the caller's 0; and the codes, before they are packed. */
template <class C> struct hk_room {
    alignas(HK_VECTOR) f32 x[C::block];
    u8 codes[C::block];
    HK_DEVICE void put(int i, const hk_four_floats &four) {
        uint4 word;
        memcpy(&word, &four, sizeof word);
        *(uint4 *)(x + i) = word;
    }
};

template <class C> struct hk_rooms {
    hk_room<C> of[HK_WARPS];
};

/* Warp w of the grid takes the blocks w, w + warps, ... */
struct hk_warp {
    u64 block, stride;
    u32 lane;
    HK_DEVICE hk_warp()
        : block(((u64)blockIdx.x * blockDim.x + threadIdx.x) / HK_WARP), stride((u64)gridDim.x * blockDim.x / HK_WARP),
          lane(threadIdx.x % HK_WARP) {}
};

HK_DEVICE f32 hk_largest(const f32 *x, int n, u32 lane) {
    u32 top = 0;
    for (int i = (int)lane; i < n; i += HK_WARP) {
        const u32 magnitude = hk_magnitude(x[i]);
        top = magnitude > top ? magnitude : top;
    }
    for (int distance = HK_WARP / 2; distance; distance /= 2) {
        const u32 other = __shfl_xor_sync(0xffffffffu, top, distance);
        top = other > top ? other : top;
    }
    return hk_float(top);
}

/* The sum of `part` of each float, in the order that HK_SUMS tells. */
template <class P> HK_DEVICE f32 hk_added(const f32 *x, int n, u32 lane, const P &part) {
    f32 sum = 0;
    for (int i = (int)lane % HK_SUMS; i < n; i += HK_SUMS)
        sum += part(x[i]);
    for (int distance = HK_SUMS / 2; distance; distance /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    return sum;
}

HK_DEVICE void hk_put_scale(u8 *out, f32 scale, u32 lane) {
    if (lane == 0)
        *(f32 *)out = scale;
}

HK_DEVICE f32 hk_get_scale(const u8 *in) {
    return *(const f32 *)in;
}

/* Codes i to i + 3 of n, a byte each, as pack.h has them. */
HK_DEVICE u32 hk_four_codes(const u8 *in, int n, int bits, int i) {
    if (bits == 8)
        return *(const u32 *)(in + i);
    u32 codes = 0;
    int shift = 0;
    HK_UNROLL for (int width = 4; width; width /= 2)
        if (bits & width) {
            const int stride = n * width / 8;
            codes |= (*(const u32 *)(in + i % stride) >> i / stride * width & ((1u << width) - 1) * 0x01010101u) << shift;
            in += stride;
            shift += width;
        }
    return codes;
}

/* What `value` gives of each of them. */
template <class V> HK_DEVICE hk_four_floats hk_values(u32 codes, const V &value) {
    hk_four_floats four;
    HK_UNROLL for (int j = 0; j < 4; j++)
        four.at[j] = value((u8)(codes >> 8 * j));
    return four;
}

/* ---- kinds: `put` makes an element of a warp's block, of which n floats are the caller's; `get` gives four of them. */

/* A scale, and a code for each float. */
template <class C, class K> struct hk_scaled {
    static HK_DEVICE void put(u8 *out, hk_room<C> &room, int n, hk_dice dice, u32 lane) {
        const int half = C::block / 2;
        const f32 scale = K::scale(room.x, n, lane), by = 1 / scale;
        const bool odd = hk_odd_scale(scale);
        hk_put_scale(out, scale, lane);
        for (int i = 4 * (int)lane; i < half; i += 4 * HK_WARP) {
            const hk_four_floats low = hk_get_four(room.x + i), high = hk_get_four(room.x + i + half);
            u32 lows = 0, highs = 0;
            HK_UNROLL for (int j = 0; j < 4; j++) {
                const hk_rolls roll = hk_roll_two(dice, (u32)(i + j));
                lows |= (u32)(odd ? K::code(0, 0) : K::code(low.at[j] * by, roll.first)) << 8 * j;
                highs |= (u32)(odd ? K::code(0, 0) : K::code(high.at[j] * by, roll.second)) << 8 * j;
            }
            if constexpr (C::bits == 4) {
                *(u32 *)(out + 4 + i) = lows | highs << 4;
            } else {
                u8 *to = C::bits == 8 ? out + 4 : room.codes;
                *(u32 *)(to + i) = lows;
                *(u32 *)(to + i + half) = highs;
            }
        }
        if constexpr (C::bits != 8 && C::bits != 4) {
            __syncwarp();
            hk_pack_codes(out + 4, room.codes, C::block, C::bits, lane, HK_WARP);
        }
    }
    static HK_DEVICE hk_four_floats get(const u8 *in, int i) {
        const f32 scale = hk_get_scale(in);
        return hk_values(hk_four_codes(in + 4, C::block, C::bits, i), [=](u8 code) { return K::value(code) * scale; });
    }
};

template <class C> struct hk_whole : hk_scaled<C, hk_whole<C>> {
    static const int zero = C::bits == 8 ? 0 : 1 << (C::bits - 1);
    static HK_DEVICE f32 scale(const f32 *x, int n, u32 lane) {
        f32 norm = hk_largest(x, C::block, lane);
        if (!hk_norm_is(norm, C::norm, C::clip())) {
            const f32 by = 1 / norm;
            const auto square = [by](f32 value) { return (value * by) * (value * by); };
            norm = hk_norm_of(norm, hk_added(x, C::block, lane, square), (f32)n, C::norm, C::clip());
        }
        return hk_usual_scale(norm / (f32)C::levels);
    }
    static HK_DEVICE u8 code(f32 part, u32 roll) {
        return (u8)((C::stochastic ? hk_rolled(part, C::levels, roll) : hk_nearest(part, C::levels)) + zero);
    }
    static HK_DEVICE f32 value(u8 code) { return C::bits == 8 ? (f32)(i8)code : (f32)((int)code - zero); }
};

template <class C> struct hk_fp8 : hk_scaled<C, hk_fp8<C>> {
    static HK_DEVICE f32 scale(const f32 *x, int, u32 lane) { return hk_usual_scale(hk_largest(x, C::block, lane) / 448); }
    static HK_DEVICE u8 code(f32 part, u32) { return hk_e4m3fn_at_most_448(part); }
    static HK_DEVICE f32 value(u8 code) { return hk_from_e4m3fn(code); }
};

template <class C> struct hk_natural : hk_scaled<C, hk_natural<C>> {
    static HK_DEVICE f32 scale(const f32 *x, int, u32 lane) {
        return hk_power_not_below(hk_largest(x, C::block, lane));
    }
    static HK_DEVICE u8 code(f32 part, u32 roll) {
        return C::stochastic ? hk_power_rolled(part, roll) : hk_power_nearest(part);
    }
    static HK_DEVICE f32 value(u8 code) { return hk_from_power(code); }
};

template <class C> HK_DEVICE void hk_put_signs(u8 *out, const f32 *x, u32 lane) {
    for (u32 i = lane; i < C::block / 8; i += HK_WARP)
        out[i] = hk_below_zero(x, i, C::block / 8);
}

template <class C> struct hk_sign {
    static HK_DEVICE void put(u8 *out, hk_room<C> &room, int n, hk_dice, u32 lane) {
        const f32 each = 1 / (f32)n;
        const auto part = [each](f32 value) { return hk_float(hk_magnitude(value)) * each; };
        const f32 mean = hk_added(room.x, C::block, lane, part);
        hk_put_scale(out, hk_is_finite(mean) ? mean : hk_nan(), lane);
        hk_put_signs<C>(out + 4, room.x, lane);
    }
    static HK_DEVICE hk_four_floats get(const u8 *in, int i) {
        const f32 mean = hk_get_scale(in);
        return hk_values(hk_four_codes(in + 4, C::block, 1, i), [=](u8 below) { return below ? -mean : mean; });
    }
};

template <class C> struct hk_onebit {
    static HK_DEVICE void put(u8 *out, hk_room<C> &room, int n, hk_dice, u32 lane) {
        const f32 all = (f32)n, each = 1 / all;
        const f32 above = hk_added(room.x, C::block, lane, [each](f32 value) { return value < 0 ? 0 : value * each; });
        const f32 below = hk_added(room.x, C::block, lane, [each](f32 value) { return value < 0 ? value * each : 0; });
        const f32 under = hk_added(room.x, C::block, lane, [](f32 value) { return (f32)(value < 0); });
        const f32 high = hk_mean_of(above, all, all - under), low = hk_mean_of(below, all, under);
        const bool odd = !hk_is_finite(high) || !hk_is_finite(low);
        hk_put_scale(out, odd ? hk_nan() : high, lane);
        hk_put_scale(out + 4, odd ? hk_nan() : low, lane);
        hk_put_signs<C>(out + 8, room.x, lane);
    }
    static HK_DEVICE hk_four_floats get(const u8 *in, int i) {
        const f32 high = hk_get_scale(in), low = hk_get_scale(in + 4);
        return hk_values(hk_four_codes(in + 8, C::block, 1, i), [=](u8 below) { return below ? low : high; });
    }
};

/* HEAD: bytes of the scale. */
template <class C, int HEAD> struct hk_half {
    static HK_DEVICE f32 scale(const u8 *in) { return HEAD ? hk_get_scale(in) : 1; }
    static HK_DEVICE f32 head(u8 *out, const f32 *x, u32 lane) {
        const f32 scale = HEAD ? hk_half_scale(hk_largest(x, C::block, lane)) : 1;
        if (HEAD)
            hk_put_scale(out, scale, lane);
        return scale;
    }
};

#define HK_HALF(S, HEAD)                                                                          \
    template <class C> struct hk_half_##S : hk_half<C, HEAD> {                                    \
        static HK_DEVICE void put(u8 *out, hk_room<C> &room, int, hk_dice, u32 lane) {            \
            const f32 by = 1 / hk_half_##S::head(out, room.x, lane);                              \
            for (u32 i = lane; i < C::block; i += HK_WARP)                                        \
                put_##S((any_##S *)(out + HEAD), i, room.x[i] * by);                              \
        }                                                                                         \
        static HK_DEVICE hk_four_floats get(const u8 *in, int i) {                                \
            const f32 scale = hk_half_##S::scale(in);                                             \
            hk_four_floats four;                                                                  \
            HK_UNROLL for (int j = 0; j < 4; j++)                                                 \
                four.at[j] = get_##S((const any_##S *)(in + HEAD), (size_t)(i + j)) * scale;      \
            return four;                                                                          \
        }                                                                                         \
    };
HK_HALF(f16, 4)
HK_HALF(bf16, 0)

#endif
