/* Sums rounded once, whoever adds first; once per level, as kernels/cpu/table.h.
 *
 * The accumulator of an element is an unevaluated sum of two doubles, s + e, which has no error: a sum of two doubles is a
 * double and what its rounding lost (Knuth's TwoSum), and that is added to e.  Where e would lose something, or something is
 * infinite, NaN or beyond a double, the terms themselves are kept, or a wide number (wide.h).  So an accumulator stands for the
 * exact sum, and adding is associative and commutative.  A sum of terms is rounded from s + e too, where what e has lost is
 * known to be too little to matter (`hk_sure`); else it is added up as a wide number.
 *
 * Two codecs.  `sums`: elements are what the caller has, and all contributions meet in one reduction, which rounds.
 * `extremes`: min and max, which take -0 for less than 0 and give one NaN.  accumulators.h has the third.
 *
 * Complex numbers are pairs of floats. */
#ifndef HOCKET_KERNELS_SUMS_H
#define HOCKET_KERNELS_SUMS_H

#include "kernels/cpu/codec.h"
#include "kernels/exact/modes.h"
#include "wide.h"

enum { HK_EXACT_BLOCK = 128 };

/* Accumulators s + e; `off`: not 0 where an element's have lost something. */
typedef struct {
    f64 s[HK_EXACT_BLOCK], e[HK_EXACT_BLOCK], off[HK_EXACT_BLOCK];
    int paired, lost; /* is some e, is some `off` not 0? */
} hk_pairs;

/* Terms of each element: k vectors, in rows of an array or anywhere. */
typedef struct {
    const u8 *first;
    size_t stride;
    const void *const *in;
    size_t k, width; /* bytes of a float */
} hk_terms;

HK_INLINE const u8 *hk_term(const hk_terms *t, size_t j, size_t at) {
    return (t->in ? (const u8 *)t->in[j] : t->first + j * t->stride) + at * t->width;
}

HK_INLINE size_t hk_parts(const hk_codec *c) { return c->dtype == HK_COMPLEX64 || c->dtype == HK_COMPLEX128 ? 2 : 1; }

HK_INLINE int hk_real(const hk_codec *c) {
    return c->dtype == HK_COMPLEX64 ? HK_FLOAT32 : c->dtype == HK_COMPLEX128 ? HK_FLOAT64 : c->dtype;
}

HK_INLINE size_t hk_real_width(int real) { return real == HK_FLOAT64 ? 8 : real == HK_FLOAT32 ? 4 : 2; }

HK_INLINE hk_format hk_format_of(int real) {
    const hk_format f16 = {11, -24}, bf16 = {8, -133}, f32 = {24, -149}, f64 = {53, -1074};
    return real == HK_FLOAT64 ? f64 : real == HK_FLOAT32 ? f32 : real == HK_FLOAT16 ? f16 : bf16;
}

HK_INLINE f64 hk_load_real(int real, const u8 *p, size_t i) {
    return real == HK_FLOAT64 ? get_f64((const any_f64 *)p, i) : real == HK_FLOAT32 ? get_f32((const any_f32 *)p, i)
        : real == HK_FLOAT16 ? get_f16((const any_f16 *)p, i) : get_bf16((const any_bf16 *)p, i);
}

/* The float next to x toward zero or away from it whose last bit is 1, if x is not what was to be rounded; `above`: that is
 * of a larger magnitude.  Of a number rounded so, with two bits more than needed, another rounding is as the first. */
HK_INLINE f32 hk_odd_f32(f64 h) {
    const f32 f = (f32)h;
    const f64 back = f;
    const u32 bits = hk_bits(f);
    if (back == h || back != back || bits & 1) return f;
    return hk_float((back < h) == (h > 0) ? bits + 1 : bits - 1);
}

/* A double that is a value of the dtype, or that needs one more rounding which cannot be wrong. */
HK_INLINE void hk_store_real(int real, u8 *p, size_t i, f64 x) {
    if (real == HK_FLOAT64)
        put_f64((any_f64 *)p, i, x != x ? hk_double((u64)0x7ff8 << 48) : x);
    else if (real == HK_FLOAT32)
        put_f32((any_f32 *)p, i, x != x ? hk_float(0x7fc00000u) : (f32)x);
    else {
        const f32 f = x != x ? hk_float(0x7fc00000u) : hk_odd_f32(x);
        if (real == HK_FLOAT16)
            put_f16((any_f16 *)p, i, f);
        else
            put_bf16((any_bf16 *)p, i, f);
    }
}

HK_INLINE f64 hk_two_sum(f64 a, f64 b, f64 *lost) {
    const f64 t = a + b, part = t - a;
    *lost = (a - (t - part)) + (b - part);
    return t;
}

/* (s + e) / divisor rounded to a real dtype, as a double for hk_store_real; 0 in `sure`: too near to a tie, or too small. */
static inline f64 hk_quotient(int real, f64 s, f64 e, f64 divisor, int *sure) {
    f64 low, q, most;
    const f64 h = hk_two_sum(s, e, &low);
    *sure = 1;
    if (h == 0) return e == 0 ? s : 0;
    q = h / divisor;
    if (real == HK_FLOAT64) {
        const f64 rest = (fma(-q, divisor, h) + low) / divisor, less = rest * (1 - 0x1p-48), more = rest * (1 + 0x1p-48);
        *sure = fabs(q) > 0x1p-900 && fabs(q) < 0x1p1000 && q + less == q + more;
        return q + rest;
    }
    const int drop = real == HK_FLOAT32 ? 29 : real == HK_FLOAT16 ? 42 : 45;
    const u64 tail = hk_double_bits(q) & (((u64)1 << drop) - 1), tie = (u64)1 << (drop - 1);
    most = real == HK_FLOAT16 ? 0x1p-14 : 0x1p-126;
    *sure = fabs(q) >= most && (tail > tie ? tail - tie : tie - tail) > 4;
    return q;
}

/* s + e rounded to a real dtype, as a double for hk_store_real, though e has lost up to about `off`; 0: it may matter. */
static inline int hk_sure(int real, f64 s, f64 e, f64 off, f64 *value) {
    f64 low;
    const f64 h = hk_two_sum(s, e, &low), size = fabs(h);
    *value = h;
    if (!(size > 0 && size < INFINITY && off < INFINITY)) return 0;
    if (real == HK_FLOAT64) {
        const f64 most = off * (1 + 0x1p-20) + fabs(low) * 0x1p-50;
        *value = h + (low + most);
        return *value == h + (low - most) && fabs(*value) < INFINITY;
    }
    const int drop = real == HK_FLOAT32 ? 29 : real == HK_FLOAT16 ? 42 : 45;
    const u64 tail = hk_double_bits(h) & (((u64)1 << drop) - 1), tie = (u64)1 << (drop - 1);
    return size >= (real == HK_FLOAT16 ? 0x1p-14 : 0x1p-126) && off < size * 0x1p-53
        && (tail > tie ? tail - tie : tie - tail) > 4;
}

static inline void hk_wide_of(hk_wide *a, const hk_codec *c, f64 s, f64 e) {
    hk_wide_clear(a, c->words, c->base);
    a->flags = hk_wide_flags(s);
    if (e != 0) a->flags |= HK_NOT_MINUS_ZERO;
    if (a->flags & 7) return;
    hk_wide_add_double(a, s);
    if (e != 0) hk_wide_add_double(a, e);
}

static void hk_wide_terms(hk_wide *a, const hk_codec *c, const hk_terms *t, size_t i, f64 factor) {
    const int real = hk_real(c);
    hk_wide_clear(a, c->words, c->base);
    for (size_t j = 0; j < t->k; j++) {
        const f64 x = hk_load_real(real, hk_term(t, j, i), 0);
        if (factor == 1)
            hk_wide_add_double(a, x);
        else
            hk_wide_add_product(a, x, factor);
    }
}

static void hk_store_wide(const hk_codec *c, f64 divisor, u8 *out, size_t i, const hk_wide *a) {
    const int real = hk_real(c);
    hk_store_real(real, out, i, hk_wide_rounded(a, divisor > 1 ? (u64)divisor : 1, hk_format_of(real)));
}

#endif

/* --- one vector after the other is added */

HK_INLINE void AT(load_doubles)(int real, f64 *restrict x, const u8 *from, size_t n) {
    if (real == HK_FLOAT64) {
        memcpy(x, from, n * 8);
        return;
    }
    f32 f[HK_EXACT_BLOCK];
    if (real == HK_FLOAT32)
        memcpy(f, from, n * 4);
    else if (real == HK_FLOAT16)
        AT(widen_f16)(f, from, n, 1);
    else
        AT(widen_bf16)(f, from, n, 1);
    for (size_t i = 0; i < n; i++) x[i] = f[i];
}

HK_INLINE void AT(add_first)(hk_pairs *restrict p, const f64 *restrict x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        p->s[i] = x[i];
        p->e[i] = 0;
        p->off[i] = fabs(x[i] - x[i]);
    }
}

HK_INLINE void AT(add_next)(hk_pairs *restrict p, const f64 *restrict x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const f64 s = p->s[i], e = p->e[i], t = s + x[i], part = t - s;
        const f64 lost = (s - (t - part)) + (x[i] - part), u = e + lost, share = u - e;
        p->s[i] = t;
        p->e[i] = u;
        p->off[i] += fabs((e - (u - share)) + (lost - share));
    }
}

HK_INLINE void AT(look_at)(hk_pairs *restrict p, size_t n) {
    f64 e = 0, off = 0;
    for (size_t i = 0; i < n; i++) {
        e += p->e[i] != 0;
        off += !(p->off[i] == 0);
    }
    p->paired = e != 0, p->lost = off != 0;
}

/* Sums of floats of at most 24 bits whose exponents differ so little that a double holds them: 1; else 0. */
HK_INLINE int AT(add_near)(const hk_codec *c, hk_pairs *restrict p, const hk_terms *t, size_t at, size_t n) {
    u32 low[HK_EXACT_BLOCK], high[HK_EXACT_BLOCK], far = 0;
    f32 room[HK_EXACT_BLOCK];
    const int real = hk_real(c);
    const u32 most = 29 - (t->k > 1 ? 64 - (u32)__builtin_clzll((u64)t->k - 1) : 0);
    if (real == HK_FLOAT64 || t->k > 1 << 20) return 0;
    for (size_t j = 0; j < t->k; j++) {
        const u8 *from = hk_term(t, j, at);
        const any_f32 *f = (const any_f32 *)room;
        if (real == HK_FLOAT32)
            f = (const any_f32 *)from;
        else if (real == HK_FLOAT16)
            AT(widen_f16)(room, from, n, 1);
        else
            AT(widen_bf16)(room, from, n, 1);
        if (j == 0)
            HK_IVDEP for (size_t i = 0; i < n; i++) {
                const u32 bits = hk_bits(f[i]) & 0x7fffffffu;
                high[i] = bits;
                low[i] = bits - 1;
                p->s[i] = f[i];
            }
        else
            HK_IVDEP for (size_t i = 0; i < n; i++) {
                const u32 bits = hk_bits(f[i]) & 0x7fffffffu, less = bits - 1;
                high[i] = high[i] > bits ? high[i] : bits;
                low[i] = low[i] < less ? low[i] : less;
                p->s[i] += f[i];
            }
    }
    for (size_t i = 0; i < n; i++) {
        const u32 l = (low[i] + 1) >> 23, h = high[i] >> 23;
        const u32 below = l > 1 ? l : 1, above = h > 1 ? h : 1;
        far |= (above - below > most) | (h == 255);
    }
    if (far) return 0;
    memset(p->e, 0, n * 8);
    p->paired = p->lost = 0;
    return 1;
}

HK_INLINE void AT(add_terms)(const hk_codec *c, hk_pairs *p, const hk_terms *t, size_t at, size_t n, f64 factor) {
    f64 x[HK_EXACT_BLOCK], more[HK_EXACT_BLOCK];
    const int real = hk_real(c), whole = real != HK_FLOAT64 && (f64)(f32)factor == factor;
    if (t->k == 0) {
        for (size_t i = 0; i < n; i++) x[i] = -0.0; /* which adds nothing */
        AT(add_first)(p, x, n);
    }
    if (factor == 1 && t->k && AT(add_near)(c, p, t, at, n)) return;
    for (size_t j = 0; j < t->k; j++) {
        AT(load_doubles)(real, x, hk_term(t, j, at), n);
        if (factor != 1 && whole)
            for (size_t i = 0; i < n; i++) x[i] *= factor; /* exact: 24 bits each */
        else if (factor != 1)
            for (size_t i = 0; i < n; i++) {
                const f64 y = x[i], product = y * factor, size = fabs(product);
                more[i] = (y == 0 || factor == 0) ? -0.0 : size > 0x1p-900 ? fma(y, factor, -product) : NAN;
                x[i] = product;
            }
        if (j)
            AT(add_next)(p, x, n);
        else
            AT(add_first)(p, x, n);
        if (factor != 1 && !whole) AT(add_next)(p, more, n);
    }
    AT(look_at)(p, n);
}

/* --- and rounded */

HK_INLINE void AT(store_odd)(int real, u8 *restrict out, const f64 *restrict s, const f64 *restrict e, size_t n) {
    f64 h[HK_EXACT_BLOCK];
    f32 f[HK_EXACT_BLOCK];
    for (size_t i = 0; i < n; i++) {
        const f64 t = s[i] + e[i], part = t - s[i], lost = (s[i] - (t - part)) + (e[i] - part);
        const u64 bits = hk_double_bits(t);
        const u64 to = bits - 1 + 2 * (u64)((lost > 0) == (t > 0));
        h[i] = lost == 0 || bits & 1 ? (e[i] == 0 ? s[i] : t) : hk_double(to);
    }
    if (real == HK_FLOAT32) {
        for (size_t i = 0; i < n; i++) f[i] = (f32)h[i];
        memcpy(out, f, n * 4);
    } else
        for (size_t i = 0; i < n; i++) hk_store_real(real, out, i, h[i]);
}

/* The pairs, rounded, at out; those that have lost something are left out. */
HK_INLINE void AT(store_pairs)(const hk_codec *c, f64 divisor, u8 *out, const hk_pairs *p, size_t n) {
    const int real = hk_real(c);
    if (divisor > 1) {
        for (size_t i = 0; i < n; i++) {
            int sure;
            hk_wide a;
            if (p->lost && !(p->off[i] == 0)) continue;
            const f64 q = hk_quotient(real, p->s[i], p->e[i], divisor, &sure);
            if (sure)
                hk_store_real(real, out, i, q);
            else {
                hk_wide_of(&a, c, p->s[i], p->e[i]);
                hk_store_wide(c, divisor, out, i, &a);
            }
        }
        return;
    }
    if (real == HK_FLOAT64) {
        any_f64 *to = (any_f64 *)out;
        for (size_t i = 0; i < n; i++) to[i] = p->e[i] == 0 ? p->s[i] : p->s[i] + p->e[i];
    } else if (p->paired)
        AT(store_odd)(real, out, p->s, p->e, n);
    else if (real == HK_FLOAT32) {
        any_f32 *to = (any_f32 *)out;
        for (size_t i = 0; i < n; i++) to[i] = (f32)p->s[i];
    } else
        for (size_t i = 0; i < n; i++) hk_store_real(real, out, i, p->s[i]);
}

static void AT(fold_sums)(const hk_codec *c, void *out, const void *const *in, int k, size_t count, hk_dice dice) {
    const hk_mode mode = hk_mode_usual();
    (void)dice;
    const int real = hk_real(c);
    const hk_terms terms = {NULL, 0, in, (size_t)k, hk_real_width(real)};
    hk_pairs p;
    hk_wide a;
    count *= hk_parts(c);
    u8 *to = (u8 *)out;
    u8 room[HK_EXACT_BLOCK * 8];
    for (size_t at = 0; at < count; at += HK_EXACT_BLOCK) {
        const size_t n = count - at < HK_EXACT_BLOCK ? count - at : HK_EXACT_BLOCK;
        AT(add_terms)(c, &p, &terms, at, n, 1);
        if (!p.lost) {
            AT(store_pairs)(c, c->divisor, to + at * terms.width, &p, n);
            continue;
        }
        AT(store_pairs)(c, c->divisor, room, &p, n); /* out may be one of the operands, which are wanted once more */
        for (size_t i = 0; i < n; i++)
            if (!(p.off[i] == 0)) {
                f64 value;
                if (c->divisor == 1 && hk_sure(real, p.s[i], p.e[i], p.off[i], &value)) {
                    hk_store_real(real, room, i, value);
                    continue;
                }
                hk_wide_terms(&a, c, &terms, at + i, 1);
                hk_store_wide(c, c->divisor, room, i, &a);
            }
        memcpy(to + at * terms.width, room, n * terms.width);
    }
    hk_mode_back(mode);
}

/* --- min and max */

static void AT(fold_extremes)(const hk_codec *c, void *out, const void *const *in, int k, size_t count, hk_dice dice) {
    const hk_mode mode = hk_mode_usual();
    (void)dice;
    const int real = hk_real(c), most = c->levels;
    const size_t width = hk_real_width(real);
    for (size_t i = 0; i < count; i++) {
        f64 best = hk_load_real(real, (const u8 *)in[0] + i * width, 0);
        for (int j = 1; j < k; j++) {
            const f64 x = hk_load_real(real, (const u8 *)in[j] + i * width, 0);
            const int below = x < best || (x == best && signbit(x) && !signbit(best));
            const int above = x > best || (x == best && signbit(best) && !signbit(x));
            best = best != best || x != x ? NAN : (most ? above : below) ? x : best;
        }
        hk_store_real(real, (u8 *)out, i, best);
    }
    hk_mode_back(mode);
}
