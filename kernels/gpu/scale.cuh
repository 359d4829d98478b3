/* Module: out = in * factor for one dtype, with the bits of scale.h.  `out` may be `in`.
 *
 * HK_DTYPE is the dtype, HK_PARTS of HK_STORAGE make one element of it; HK_SCALE says how it rounds:
 * small (in fp32), real (in double), int (up to 32 bits, saturating at HK_LOW and HK_HIGH) or long (64 bits).
 * May be included once for each dtype. */
#include "tiles.cuh"

#include "kernels/factor.h"

#ifndef HOCKET_KERNELS_SCALE_CUH
#define HOCKET_KERNELS_SCALE_CUH

struct hk_by_small {
    f32 by;
    HK_DEVICE hk_by_small(f64 factor) : by(hk_small_factor(factor)) {}
    HK_DEVICE f32 operator()(f32 x) const { return x * by; }
};

struct hk_by_real {
    f64 by;
    HK_DEVICE hk_by_real(f64 factor) : by(factor) {}
    HK_DEVICE f64 operator()(f64 x) const { return x * by; }
};

struct hk_by_int {
    f64 times, by;
    HK_DEVICE hk_by_int(f64 factor) {
        i32 divisor = hk_divisor(factor);
        times = divisor ? 1 : factor;
        by = divisor ? divisor : 1;
    }
};

struct hk_by_long {
    hk_factor by;
    HK_DEVICE hk_by_long(f64 factor) : by(hk_split(factor)) {}
    HK_DEVICE i64 operator()(i64 x) const { return hk_scale_i64(x, by); }
    HK_DEVICE u64 operator()(u64 x) const { return hk_scale_u64(x, by); }
};

/* Sixteen bytes at a time where both addresses are aligned to them, else one element. */
template <class S> HK_DEVICE void hk_scale_all(void *out, const void *in, u64 count, const S &scaling) {
    typedef typename S::element element;
    typedef hk_pack<element> pack;
    const u64 each = HK_VECTOR / sizeof(element), tile = each * blockDim.x;
    const bool vectors = hk_is_vector(out) && hk_is_vector(in);
    for (u64 at = blockIdx.x * tile; at < count; at += gridDim.x * tile) {
        const u64 mine = at + threadIdx.x * each;
        if (vectors && mine + each <= count) {
            pack value = hk_load_as<uint4, pack>((const element *)in + mine);
            HK_UNROLL for (int j = 0; j < (int)each; j++)
                scaling.one(value.at, value.at, j);
            hk_store_as<uint4>((element *)out + mine, value);
        } else if (vectors) {
            for (u64 i = mine; i < count && i < mine + each; i++)
                scaling.one((element *)out, (const element *)in, i);
        } else {
            for (u64 i = at + threadIdx.x; i < count && i < at + tile; i += blockDim.x)
                scaling.one((element *)out, (const element *)in, i);
        }
    }
}

#endif

#define HK_SCALING HK_PASTE(hk_scaling_, HK_DTYPE)
#define HK_BY HK_PASTE(hk_by_, HK_SCALE)

struct HK_SCALING : HK_BY {
    typedef HK_PASTE(any_, HK_STORAGE) element;
    HK_DEVICE HK_SCALING(f64 factor) : HK_BY(factor) {}
    HK_DEVICE void one(element *out, const element *in, u64 i) const {
#ifdef HK_LOW
        out[i] = (HK_STORAGE)hk_scale_int((f64)in[i], times, by, HK_LOW, HK_HIGH);
#else
        HK_PASTE(put_, HK_STORAGE)(out, i, (*this)(HK_PASTE(get_, HK_STORAGE)(in, i)));
#endif
    }
};

/* 2n bytes of memory traffic. */
HK_KERNEL(HK_PASTE(hk_scale_, HK_DTYPE), void *out, const void *in, u64 count, f64 factor) {
    hk_scale_all(out, in, count * HK_PARTS, HK_SCALING(factor));
}

#undef HK_SCALING
#undef HK_BY
