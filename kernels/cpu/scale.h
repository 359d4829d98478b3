/* out = in * factor, for every dtype of numbers; once per level, as table.h.  `out` may be `in`.
 *
 * float64 and both parts of complex128 in double; float32 and complex64 in double, rounded once; smaller floats in
 * fp32, rounded once more to be stored.  Integers round toward zero and saturate, NaN gives 0; up to 32 bits
 * take the product in double, 64 bits the exact one.  A factor of 1.0 / n divides integers by n exactly:
 * 49 * (1.0 / 49) is less than 1 in double, and an average must not lose it. */
#ifndef HOCKET_KERNELS_SCALE_H
#define HOCKET_KERNELS_SCALE_H

#include "kernels/factor.h"
#include "fold.h"

#endif

#define HK_SCALE(S, ...)                                                                                \
    static void AT(scale_##S)(void *to, const void *from, size_t count, double factor) {                \
        any_##S *out = (any_##S *)to;                                                                   \
        const any_##S *in = (const any_##S *)from;                                                      \
        __VA_ARGS__                                                                                            \
    }

#define HK_SCALE_SMALL(S)                                                                              \
    HK_SCALE(S, f32 by = hk_small_factor(factor);                                                       \
        HK_IVDEP for (size_t i = 0; i < count; i++) { put_##S(out, i, get_##S(in, i) * by); })

#define HK_SCALE_INT(S, LOW, HIGH)                                                                      \
    HK_SCALE(S, double divisor = hk_divisor(factor);                                                    \
        double times = divisor ? 1 : factor, by = divisor ? divisor : 1;                                \
        HK_IVDEP for (size_t i = 0; i < count; i++) {                                                   \
            out[i] = (S)hk_scale_int((double)in[i], times, by, LOW, HIGH);                              \
        })

#define HK_SCALE_LONG(S)                                                                                \
    HK_SCALE(S, struct hk_factor by = hk_split(factor);                                                 \
        for (size_t i = 0; i < count; i++) { out[i] = hk_scale_##S(in[i], by); })

HK_SCALE_INT(i8, INT8_MIN, INT8_MAX) HK_SCALE_INT(u8, 0, UINT8_MAX)
HK_SCALE_INT(i16, INT16_MIN, INT16_MAX) HK_SCALE_INT(u16, 0, UINT16_MAX)
HK_SCALE_INT(i32, INT32_MIN, INT32_MAX) HK_SCALE_INT(u32, 0, UINT32_MAX)
HK_SCALE_LONG(i64) HK_SCALE_LONG(u64)
HK_SCALE_SMALL(e4m3fn) HK_SCALE_SMALL(e5m2)

HK_SCALE(f64, HK_IVDEP for (size_t i = 0; i < count; i++) { out[i] = in[i] * factor; })
HK_SCALE(f32, HK_IVDEP for (size_t i = 0; i < count; i++) { out[i] = (f32)((f64)in[i] * factor); })

#ifdef HK_LANES
#define HK_SCALE_LANES(S)                                                                               \
    HK_SCALE(S, f32 by = hk_small_factor(factor); size_t i = 0;                                         \
        for (; i + HK_LANES <= count; i += HK_LANES)                                                    \
            put_lanes_##S(out, i, lanes_prod_f32(get_lanes_##S(in, i), lanes_all(by)));                     \
        for (; i < count; i++)                                                                          \
            put_##S(out, i, get_##S(in, i) * by);)
HK_SCALE_LANES(f16) HK_SCALE_LANES(bf16)
#undef HK_SCALE_LANES
#else
HK_SCALE_SMALL(f16) HK_SCALE_SMALL(bf16)
#endif

static void AT(scale_c64)(void *out, const void *in, size_t count, double factor) {
    AT(scale_f32)(out, in, 2 * count, factor);
}

static void AT(scale_c128)(void *out, const void *in, size_t count, double factor) {
    AT(scale_f64)(out, in, 2 * count, factor);
}

static const hk_apply_fn AT(hk_scales)[HK_DTYPE_COUNT] = {
    [HK_INT8] = AT(scale_i8), [HK_UINT8] = AT(scale_u8), [HK_INT16] = AT(scale_i16), [HK_UINT16] = AT(scale_u16),
    [HK_INT32] = AT(scale_i32), [HK_UINT32] = AT(scale_u32), [HK_INT64] = AT(scale_i64), [HK_UINT64] = AT(scale_u64),
    [HK_FLOAT16] = AT(scale_f16), [HK_BFLOAT16] = AT(scale_bf16), [HK_FLOAT32] = AT(scale_f32),
    [HK_FLOAT64] = AT(scale_f64), [HK_COMPLEX64] = AT(scale_c64), [HK_COMPLEX128] = AT(scale_c128),
    [HK_FLOAT8_E4M3FN] = AT(scale_e4m3fn), [HK_FLOAT8_E5M2] = AT(scale_e5m2),
};

#undef HK_SCALE
#undef HK_SCALE_SMALL
#undef HK_SCALE_INT
#undef HK_SCALE_LONG
