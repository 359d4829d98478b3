/* Module: one codec's kernels, with the bits of kernels/cpu/codec_*.h, which have its law (a NaN may be another one).
 *
 * HK_CODEC is its name here, HK_KIND one of the kinds below; HK_BLOCK, HK_BYTES, HK_WIDTH (of a code, in bits),
 * HK_LEVELS, HK_NORM, HK_CLIP (the bits of a float) and HK_STOCHASTIC are its parameters, known to the compiler, so that
 * places in a block cost little.  May be included once for each codec.
 *
 * A warp takes a block of floats at a time, in shared memory, where each lane reaches all of it: what is added is added
 * in the order of the CPU.  A lane takes four floats in a row at a time, of which the codes are words, too.
 * Elements lie at multiples of four bytes, and blocks are of a multiple of 64 floats.  Whole warps only, at most eight
 * to a CUDA block. */
#include "tiles.cuh"

#include "kernels/codes.h"
#include "kernels/factor.h"
#include "kernels/pack.h"

#ifndef HOCKET_KERNELS_CODEC_CUH
#define HOCKET_KERNELS_CODEC_CUH

enum { HK_WARP = 32, HK_WARPS = 8 };

/* Four floats in a row, of a place that is a multiple of four. */
typedef hk_pack<f32> hk_four_floats;

HK_DEVICE hk_four_floats hk_get_four(const f32 *x) {
    return hk_load_as<uint4, hk_four_floats>(x);
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

/* ---- what the kernels do */

/* Encodes what load(block, i, n) gives of a block's floats i to i + 3, of which it has n: anything for those behind.  A lane
 * has loaded all that it loads of a block before any lane stores. */
template <class C, class K, class L>
HK_DEVICE void hk_encode_blocks(hk_rooms<C> &rooms, u8 *out, u64 count, hk_dice dice, const L &load) {
    const hk_warp warp;
    hk_room<C> &room = rooms.of[threadIdx.x / HK_WARP];
    for (u64 block = warp.block; block * C::block < count; block += warp.stride) {
        const u64 at = block * C::block;
        const int n = count - at < C::block ? (int)(count - at) : (int)C::block;
        HK_UNROLL for (int i = 4 * (int)warp.lane; i < C::block; i += 4 * HK_WARP) {
            hk_four_floats four = load(block, i, n);
            HK_UNROLL for (int j = 0; j < 4; j++)
                four.at[j] = i + j < n ? four.at[j] : 0;
            room.put(i, four);
        }
        __syncwarp();
        K::put(out + block * C::bytes, room, n, hk_dice{dice.key, dice.first + (u32)at}, warp.lane);
        __syncwarp(); /* the room is used again */
    }
}

#endif

#define HK_CODED HK_PASTE(hk_coded_, HK_CODEC)

struct HK_CODED {
    enum { block = HK_BLOCK, bytes = HK_BYTES, bits = HK_WIDTH, levels = HK_LEVELS, norm = HK_NORM };
    static const bool stochastic = HK_STOCHASTIC;
    static HK_DEVICE f32 clip() { return hk_float(HK_CLIP); }
    typedef HK_PASTE(hk_, HK_KIND)<HK_CODED> kind;
};

/* `count` floats, each times factor, into elements; random numbers from `key`, counted from `first`. */
HK_KERNEL(HK_PASTE(hk_encode_, HK_CODEC), void *out, const void *in, u64 count, f64 factor, u64 key, u64 first) {
    typedef HK_CODED C;
    HK_SHARED(hk_rooms<C>, rooms);
    const f32 by = hk_small_factor(factor);
    const bool vectors = hk_is_vector(in);
    hk_encode_blocks<C, C::kind>(rooms, (u8 *)out, count, hk_dice{key, (u32)first}, [=](u64 block, int i, int n) {
        const f32 *x = (const f32 *)in + block * C::block + i;
        hk_four_floats four;
        if (vectors && i + 4 <= n) {
            four = hk_get_four(x);
        } else {
            HK_UNROLL for (int j = 0; j < 4; j++)
                four.at[j] = i + j < n ? x[j] : 0;
        }
        HK_UNROLL for (int j = 0; j < 4; j++)
            four.at[j] *= by;
        return four;
    });
}

/* The floats of elements, each times factor. */
HK_KERNEL(HK_PASTE(hk_decode_, HK_CODEC), void *out, const void *in, u64 count, f64 factor) {
    typedef HK_CODED C;
    const f32 by = hk_small_factor(factor);
    const bool vectors = hk_is_vector(out);
    const u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x, threads = (u64)gridDim.x * blockDim.x;
    for (u64 i = 4 * thread; i < count; i += 4 * threads) {
        hk_four_floats four = C::kind::get((const u8 *)in + i / C::block * C::bytes, (int)(i % C::block));
        HK_UNROLL for (int j = 0; j < 4; j++)
            four.at[j] *= by;
        if (vectors && count - i >= 4)
            hk_store_as<uint4>((f32 *)out + i, four);
        else
            for (int j = 0; j < 4 && i + j < count; j++)
                ((f32 *)out)[i + j] = four.at[j];
    }
}

/* out = in[0] + ... + in[k-1], left to right in float32, encoded once: the elements of `count` floats; 2 <= k <= 256.
 * `out` may be exactly one of the inputs. */
HK_KERNEL(HK_PASTE(hk_fold_, HK_CODEC), HK_PARAM(hk_ways) in, void *out, u64 count, i32 k, u64 key, u64 first) {
    typedef HK_CODED C;
    HK_SHARED(hk_rooms<C>, rooms);
    hk_encode_blocks<C, C::kind>(rooms, (u8 *)out, count, hk_dice{key, (u32)first}, [&](u64 block, int i, int) {
        const u64 at = block * C::bytes;
        hk_four_floats sum = C::kind::get((const u8 *)in.at[0] + at, i);
        for (int j = 1; j < k; j++) {
            const hk_four_floats next = C::kind::get((const u8 *)in.at[j] + at, i);
            HK_UNROLL for (int part = 0; part < 4; part++)
                sum.at[part] += next.at[part];
        }
        return sum;
    });
}

#undef HK_CODED
