/* Module: one codec's kernels, with the bits of kernels/cpu/codec_*.h, which have its law (a NaN may be another one).
 *
 * HK_CODEC is its name here, HK_KIND one of codec_kinds.cuh; HK_BLOCK, HK_BYTES, HK_WIDTH (of a code, in bits), HK_LEVELS,
 * HK_NORM, HK_CLIP (the bits of a float) and HK_STOCHASTIC are its parameters, known to the compiler, so that places in a
 * block cost little.  With HK_RESIDUAL these are the kernels that keep what is lost.  May be included once for each name.
 *
 * A warp takes a block of floats at a time, in shared memory, where each lane reaches all of it: what is added is added
 * in the order of the CPU.  A lane takes four floats in a row at a time, of which the codes are words, too.
 * Elements lie at multiples of four bytes, and blocks are of a multiple of 64 floats.  Whole warps only, at most eight
 * to a CUDA block. */
#include "codec_kinds.cuh"

#ifndef HOCKET_KERNELS_CODEC_CUH
#define HOCKET_KERNELS_CODEC_CUH

/* Encodes what load(block, i, n) gives of a block's floats i to i + 3, of which it has n: anything for those behind; then
 * left(block, i, n, them) has these floats again, and the element.  A lane has loaded all that it loads of a block before any
 * lane stores. */
template <class C, class K, class L, class R>
HK_DEVICE void hk_encode_blocks(hk_rooms<C> &rooms, u8 *out, u64 count, hk_dice dice, const L &load, const R &left) {
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
        __syncwarp(); /* the room is used again, and the element read */
        HK_UNROLL for (int i = 4 * (int)warp.lane; i < C::block; i += 4 * HK_WARP)
            left(block, i, n, room);
    }
}

struct hk_nothing {
    template <class R> HK_DEVICE void operator()(u64, int, int, const R &) const {}
};

/* The sum of k elements' floats i to i + 3, left to right; `at`: where the block is. */
template <class K> HK_DEVICE hk_four_floats hk_sum_of(const hk_ways &in, int k, u64 at, int i) {
    hk_four_floats sum = K::get((const u8 *)in.at[0] + at, i);
    for (int j = 1; j < k; j++) {
        const hk_four_floats next = K::get((const u8 *)in.at[j] + at, i);
        HK_UNROLL for (int part = 0; part < 4; part++)
            sum.at[part] += next.at[part];
    }
    return sum;
}

/* Floats beside those that are encoded, as kernels/cpu/codec.h has them. */
template <class C> struct hk_residual {
    const f32 *before;
    f32 *after;
    bool vectors[2];
    HK_DEVICE hk_residual(const void *b, void *a)
        : before((const f32 *)b), after((f32 *)a), vectors{hk_is_vector(b), hk_is_vector(a)} {}
    HK_DEVICE hk_four_floats added(hk_four_floats four, u64 block, int i, int n) const {
        if (before) {
            const hk_four_floats more = hk_get_some(before + block * C::block, i, n, vectors[0]);
            HK_UNROLL for (int j = 0; j < 4; j++)
                four.at[j] += more.at[j];
        }
        return four;
    }
    HK_DEVICE void leave(const u8 *elements, u64 block, int i, int n, const hk_room<C> &room) const {
        hk_four_floats lost = hk_get_four(room.x + i);
        const hk_four_floats came = C::kind::get(elements + block * C::bytes, i);
        HK_UNROLL for (int j = 0; j < 4; j++)
            lost.at[j] -= came.at[j];
        hk_put_some(after + block * C::block, i, n, vectors[1], lost);
    }
};

#endif

#define HK_CODED HK_PASTE(hk_coded_, HK_CODEC)

struct HK_CODED {
    enum { block = HK_BLOCK, bytes = HK_BYTES, bits = HK_WIDTH, levels = HK_LEVELS, norm = HK_NORM };
    static const bool stochastic = HK_STOCHASTIC;
    static HK_DEVICE f32 clip() { return hk_float(HK_CLIP); }
    typedef HK_PASTE(hk_, HK_KIND)<HK_CODED> kind;
};

#ifdef HK_RESIDUAL

/* `count` floats + before (if there is one) into elements; `after`, which may be `before` or `in`, becomes what that loses. */
HK_KERNEL(HK_PASTE(hk_encode_, HK_CODEC), void *out, const void *in, u64 count, u64 key, u64 first, const void *before,
          void *after) {
    typedef HK_CODED C;
    HK_SHARED(hk_rooms<C>, rooms);
    const bool vectors = hk_is_vector(in);
    const hk_residual<C> residual(before, after);
    const auto load = [=](u64 block, int i, int n) {
        return residual.added(hk_get_some((const f32 *)in + block * C::block, i, n, vectors), block, i, n);
    };
    const auto left = [=](u64 block, int i, int n, const hk_room<C> &room) {
        residual.leave((const u8 *)out, block, i, n, room);
    };
    hk_encode_blocks<C, C::kind>(rooms, (u8 *)out, count, hk_dice{key, (u32)first}, load, left);
}

/* The same of in[0] + ... + in[k-1]; `out` may be exactly one of them. */
HK_KERNEL(HK_PASTE(hk_fold_, HK_CODEC), HK_PARAM(hk_ways) in, void *out, u64 count, i32 k, u64 key, u64 first,
          const void *before, void *after) {
    typedef HK_CODED C;
    HK_SHARED(hk_rooms<C>, rooms);
    const hk_residual<C> residual(before, after);
    const auto load = [&](u64 block, int i, int n) {
        return residual.added(hk_sum_of<C::kind>(in, k, block * C::bytes, i), block, i, n);
    };
    const auto left = [=](u64 block, int i, int n, const hk_room<C> &room) {
        residual.leave((const u8 *)out, block, i, n, room);
    };
    hk_encode_blocks<C, C::kind>(rooms, (u8 *)out, count, hk_dice{key, (u32)first}, load, left);
}

#else

/* `count` floats, each times factor, into elements; random numbers from `key`, counted from `first`. */
HK_KERNEL(HK_PASTE(hk_encode_, HK_CODEC), void *out, const void *in, u64 count, f64 factor, u64 key, u64 first) {
    typedef HK_CODED C;
    HK_SHARED(hk_rooms<C>, rooms);
    const f32 by = hk_small_factor(factor);
    const bool vectors = hk_is_vector(in);
    hk_encode_blocks<C, C::kind>(rooms, (u8 *)out, count, hk_dice{key, (u32)first}, [=](u64 block, int i, int n) {
        hk_four_floats four = hk_get_some((const f32 *)in + block * C::block, i, n, vectors);
        HK_UNROLL for (int j = 0; j < 4; j++)
            four.at[j] *= by;
        return four;
    }, hk_nothing());
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
        hk_put_some((f32 *)out + i, 0, count - i < 4 ? (int)(count - i) : 4, vectors, four);
    }
}

/* out = in[0] + ... + in[k-1], left to right in float32, encoded once: the elements of `count` floats; 2 <= k <= 256.
 * `out` may be exactly one of the inputs. */
HK_KERNEL(HK_PASTE(hk_fold_, HK_CODEC), HK_PARAM(hk_ways) in, void *out, u64 count, i32 k, u64 key, u64 first) {
    typedef HK_CODED C;
    HK_SHARED(hk_rooms<C>, rooms);
    hk_encode_blocks<C, C::kind>(rooms, (u8 *)out, count, hk_dice{key, (u32)first}, [&](u64 block, int i, int) {
        return hk_sum_of<C::kind>(in, k, block * C::bytes, i);
    }, hk_nothing());
}

#endif

#undef HK_CODED
