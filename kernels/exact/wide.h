/* A wide number: a whole number of 64-bit words in two's complement, times 2^base, that any float of a dtype can be added
 * to, in any order, without an error (Kulisch's accumulator, as in Neal's "small" one).
 *
 * Words are little-endian.  What is not a number is told by flags beside it, as IEEE 754 has it for the exact sum. */
#ifndef HOCKET_KERNELS_WIDE_H
#define HOCKET_KERNELS_WIDE_H

#include <math.h>

#include "kernels/elements.h"

enum { HK_WIDE_WORDS = 68 };
enum { HK_PLUS_INF = 1, HK_MINUS_INF = 2, HK_NAN = 4, HK_NOT_MINUS_ZERO = 8 };

typedef struct {
    u64 w[HK_WIDE_WORDS];
    int words, base, flags;
} hk_wide;

/* A format that results are rounded to: bits of precision, and the exponent of the smallest subnormal. */
typedef struct {
    int precision, least;
} hk_format;

HK_INLINE u64 hk_double_bits(f64 x) {
    u64 bits;
    memcpy(&bits, &x, 8);
    return bits;
}

HK_INLINE f64 hk_double(u64 bits) {
    f64 x;
    memcpy(&x, &bits, 8);
    return x;
}

HK_INLINE void hk_wide_clear(hk_wide *a, int words, int base) {
    memset(a->w, 0, (size_t)words * 8);
    a->words = words, a->base = base, a->flags = 0;
}

/* Add (hi, lo) * 2^exponent, or subtract it.  What is below 2^base is zero. */
static inline void hk_wide_add(hk_wide *a, int minus, u64 hi, u64 lo, int exponent) {
    int shift = exponent - a->base;
    if (shift < 0) { /* trailing zeros of the number, as it is a multiple of 2^base */
        const int down = -shift;
        if (down >= 128) return;
        if (down >= 64)
            lo = hi >> (down - 64), hi = 0;
        else
            lo = (lo >> down) | (hi << (64 - down)), hi >>= down;
        shift = 0;
    }
    const int by = shift % 64;
    u64 part[3] = {lo << by, by ? (hi << by) | (lo >> (64 - by)) : hi, by ? hi >> (64 - by) : 0}, carry = 0;
    for (int i = shift / 64, j = 0; i < a->words && (j < 3 || carry); i++, j++) {
        const u64 more = j < 3 ? part[j] : 0, old = a->w[i];
        if (minus) {
            const u64 less = old - more;
            a->w[i] = less - carry;
            carry = (less > old) | (less < carry);
        } else {
            const u64 sum = old + more;
            a->w[i] = sum + carry;
            carry = (sum < old) | (a->w[i] < sum);
        }
    }
}

/* The flags of a term. */
HK_INLINE int hk_wide_flags(f64 x) {
    if (x != x) return HK_NAN | HK_NOT_MINUS_ZERO;
    if (x - x != 0) return (x > 0 ? HK_PLUS_INF : HK_MINUS_INF) | HK_NOT_MINUS_ZERO;
    return x == 0 && hk_double_bits(x) ? 0 : HK_NOT_MINUS_ZERO;
}

HK_INLINE u64 hk_wide_split(f64 x, int *exponent) {
    const u64 bits = hk_double_bits(x), fraction = bits & (((u64)1 << 52) - 1);
    const int e = (int)(bits >> 52) & 0x7ff;
    *exponent = (e ? e : 1) - 1075;
    return e ? fraction | (u64)1 << 52 : fraction;
}

static inline void hk_wide_add_double(hk_wide *a, f64 x) {
    int exponent;
    const int flags = hk_wide_flags(x);
    a->flags |= flags;
    if (flags & (HK_NAN | HK_PLUS_INF | HK_MINUS_INF)) return;
    const u64 m = hk_wide_split(x, &exponent);
    if (m) hk_wide_add(a, x < 0, 0, m, exponent);
}

/* Add x * y, not rounded. */
static inline void hk_wide_add_product(hk_wide *a, f64 x, f64 y) {
    int ex, ey;
    if (x - x != 0 || y - y != 0 || x == 0 || y == 0) {
        hk_wide_add_double(a, x * y);
        return;
    }
    a->flags |= HK_NOT_MINUS_ZERO;
    const unsigned __int128 m = (unsigned __int128)hk_wide_split(x, &ex) * hk_wide_split(y, &ey);
    hk_wide_add(a, (x < 0) != (y < 0), (u64)(m >> 64), (u64)m, ex + ey);
}

HK_INLINE int hk_wide_top(const u64 *w, int words) {
    for (int i = words - 1; i >= 0; i--)
        if (w[i]) return i * 64 + 63 - __builtin_clzll(w[i]);
    return -1;
}

/* a / divisor, rounded once, to nearest, ties to even: as a double, which is exact. */
static inline f64 hk_wide_rounded(const hk_wide *a, u64 divisor, hk_format to) {
    if (a->flags & HK_NAN || (a->flags & 3) == 3) return hk_double((u64)0x7ff8 << 48);
    if (a->flags & 3) return a->flags & HK_PLUS_INF ? INFINITY : -INFINITY;
    u64 m[HK_WIDE_WORDS + 1];
    const int words = a->words + 1, base = a->base - 64, minus = (int)(a->w[a->words - 1] >> 63);
    u64 carry = (u64)minus, rest = 0;
    m[0] = 0; /* bits of a quotient below 2^base */
    for (int i = 0; i < a->words; i++) {
        m[i + 1] = (minus ? ~a->w[i] : a->w[i]) + carry;
        carry = carry && m[i + 1] == 0;
    }
    int top = hk_wide_top(m, words);
    if (top < 0) return a->flags & HK_NOT_MINUS_ZERO ? 0.0 : -0.0;
    if (divisor > 1) {
        for (int i = top / 64; i >= 0; i--) {
            const unsigned __int128 n = (unsigned __int128)rest << 64 | m[i];
            m[i] = (u64)(n / divisor), rest = (u64)(n % divisor);
        }
        top = hk_wide_top(m, words);
        if (top < 0) return minus ? -0.0 : 0.0;
    }
    int least = top + base - (to.precision - 1);
    if (least < to.least) least = to.least;
    const int at = least - base, word = at / 64, bit = at % 64; /* at >= 64 */
    u64 q = 0;
    if (at <= top) {
        q = m[word] >> bit;
        if (bit && word + 1 < words) q |= m[word + 1] << (64 - bit);
    }
    const int below = at - 1, full = below / 64, part = below % 64;
    int half = 0, sticky = rest != 0;
    for (int i = 0; i < full && i < words; i++) sticky |= m[i] != 0;
    if (full < words) {
        half = (int)(m[full] >> part) & 1;
        sticky |= (m[full] & (((u64)1 << part) - 1)) != 0;
    }
    q += half && (sticky || q & 1);
    const f64 value = ldexp((f64)q, least);
    return minus ? -value : value;
}

#endif
