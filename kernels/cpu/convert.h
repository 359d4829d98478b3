/* Between float32 and a smaller float, times a factor; once per level, as table.h.  `out` and `in` lie apart.
 *
 * The product is taken in fp32, and rounded once more where it is stored as less.  NaN stays NaN. */
#ifndef HOCKET_KERNELS_CONVERT_H
#define HOCKET_KERNELS_CONVERT_H

#include "kernels/factor.h"
#include "fold.h"

/* What hk_to_bf16 wants of a NaN that may be anybody's: a lower half of zeros. */
HK_INLINE f32 hk_usual_nan(f32 value) {
    uint32_t bits = hk_bits(value);
    return hk_float(hk_select((bits & 0x7fffffffu) > 0x7f800000u, (bits | 0x00400000u) & 0xffff0000u, bits));
}

#endif

#define HK_CONVERT(NAME, TO, FROM, ...)                                                                 \
    static void AT(NAME)(void *to, const void *from, size_t count, double factor) {                     \
        any_##TO *restrict out = (any_##TO *)to;                                                        \
        const any_##FROM *restrict in = (const any_##FROM *)from;                                       \
        f32 by = hk_small_factor(factor);                                                               \
        size_t i = 0;                                                                                   \
        __VA_ARGS__                                                                                     \
        HK_IVDEP for (; i < count; i++) { put_##TO(out, i, hk_usual_nan(get_##FROM(in, i) * by)); }     \
    }

#ifdef HK_LANES
#define HK_BY_LANES(TO, FROM)                                                                           \
    for (; i + HK_LANES <= count; i += HK_LANES)                                                        \
        put_lanes_##TO(out, i, lanes_prod_f32(get_lanes_##FROM(in, i), lanes_all(by)));
HK_CONVERT(narrow_f16, f16, f32, HK_BY_LANES(f16, f32))
HK_CONVERT(widen_f16, f32, f16, HK_BY_LANES(f32, f16))
#undef HK_BY_LANES
#else
HK_CONVERT(narrow_f16, f16, f32, )
HK_CONVERT(widen_f16, f32, f16, )
#endif
HK_CONVERT(narrow_bf16, bf16, f32, )
HK_CONVERT(widen_bf16, f32, bf16, )
HK_CONVERT(narrow_e4m3fn, e4m3fn, f32, )
HK_CONVERT(widen_e4m3fn, f32, e4m3fn, )
HK_CONVERT(narrow_e5m2, e5m2, f32, )
HK_CONVERT(widen_e5m2, f32, e5m2, )

static const hk_apply_fn AT(hk_narrow)[HK_DTYPE_COUNT] = {
    [HK_FLOAT16] = AT(narrow_f16), [HK_BFLOAT16] = AT(narrow_bf16),
    [HK_FLOAT8_E4M3FN] = AT(narrow_e4m3fn), [HK_FLOAT8_E5M2] = AT(narrow_e5m2),
};
static const hk_apply_fn AT(hk_widen)[HK_DTYPE_COUNT] = {
    [HK_FLOAT16] = AT(widen_f16), [HK_BFLOAT16] = AT(widen_bf16),
    [HK_FLOAT8_E4M3FN] = AT(widen_e4m3fn), [HK_FLOAT8_E5M2] = AT(widen_e5m2),
};

#undef HK_CONVERT
