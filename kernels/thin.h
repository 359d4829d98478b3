/* Products of a matrix with thin ones, each in one pass over the matrix; and thin matrices with orthonormal columns.
 *
 * m is rows x columns.  p is rows x wide, and q, of columns x wide, lies transposed; `wide` is a multiple of HK_THIN,
 * and who calls fills up with zeros.  Sums are made in one order on every machine, as vectors of 8 whatever its
 * registers, and products are rounded before they are added (-ffp-contract=off): the same bits everywhere.
 */
#ifndef HK_THIN_H
#define HK_THIN_H

#include <math.h>
#include <stddef.h>
#include <string.h>

enum {
    HK_THIN = 4,
    HK_LANES = 8,
    HK_SPAN = 8192, /* columns at a time: HK_THIN rows of q, 128 KiB, stay near the core */
    HK_AHEAD = 512, /* floats that are asked for early: what the core foresees ends with a page (1.6 times as fast) */
};
typedef float hk_lanes __attribute__((vector_size(32), aligned(4), may_alias));

#define HK_AT(place) (*(const hk_lanes *)(place))
#define HK_INTO(place) (*(hk_lanes *)(place))
#define HK_EACH(k) for (int k = 0; k < HK_THIN; k++)
#define HK_BODY static inline __attribute__((always_inline)) void

static inline float hk_thin_sum(const hk_lanes *x) {
    return (((*x)[0] + (*x)[4]) + ((*x)[2] + (*x)[6])) + (((*x)[1] + (*x)[5]) + ((*x)[3] + (*x)[7]));
}

/* p += x q, of two rows of m and the columns from j to end; y is x again behind the last row. */
HK_BODY hk_across_two(
    const float *x, const float *y, size_t j, size_t end, const float *q, size_t columns, float *p, float *r) {
    hk_lanes s[HK_THIN] = {{0}}, t[HK_THIN] = {{0}};
    for (; j + HK_LANES <= end; j += HK_LANES) {
        const hk_lanes a = HK_AT(x + j), b = HK_AT(y + j);
        __builtin_prefetch(x + j + HK_AHEAD);
        __builtin_prefetch(y + j + HK_AHEAD);
        HK_EACH(k) {
            const hk_lanes c = HK_AT(q + (size_t)k * columns + j);
            s[k] += a * c;
            t[k] += b * c;
        }
    }
    HK_EACH(k) {
        float u = hk_thin_sum(&s[k]), v = hk_thin_sum(&t[k]);
        for (size_t i = j; i < end; i++) {
            u += x[i] * q[(size_t)k * columns + i];
            v += y[i] * q[(size_t)k * columns + i];
        }
        p[k] += u;
        r[k] += v;
    }
}

/* p = m q. */
HK_BODY hk_across_any(const float *m, size_t rows, size_t columns, const float *q, size_t wide, float *p) {
    float beyond[HK_THIN] = {0};
    memset(p, 0, rows * wide * sizeof *p);
    for (size_t j = 0; j < columns; j += HK_SPAN) {
        const size_t end = j + HK_SPAN < columns ? j + HK_SPAN : columns;
        for (size_t i = 0; i < rows; i += 2)
            for (size_t k = 0; k < wide; k += HK_THIN) {
                const int two = i + 1 < rows;
                hk_across_two(m + i * columns, m + (i + (size_t)two) * columns, j, end, q + k * columns, columns,
                              p + i * wide + k, two ? p + (i + 1) * wide + k : beyond);
            }
    }
}

/* q += p x, of two rows of m and the columns from j to end. */
HK_BODY hk_along_two(
    const float *x, const float *y, size_t j, size_t end, const float *p, const float *r, size_t columns, float *q) {
    for (; j + HK_LANES <= end; j += HK_LANES) {
        const hk_lanes a = HK_AT(x + j), b = HK_AT(y + j);
        __builtin_prefetch(x + j + HK_AHEAD);
        __builtin_prefetch(y + j + HK_AHEAD);
        HK_EACH(k) {
            float *into = q + (size_t)k * columns + j;
            HK_INTO(into) = (HK_AT(into) + a * p[k]) + b * r[k];
        }
    }
    for (; j < end; j++)
        HK_EACH(k) {
            float *into = q + (size_t)k * columns + j;
            *into = (*into + x[j] * p[k]) + y[j] * r[k];
        }
}

/* q = m^T p, transposed. */
HK_BODY hk_along_any(const float *m, size_t rows, size_t columns, const float *p, size_t wide, float *q) {
    const float none[HK_THIN] = {0};
    memset(q, 0, columns * wide * sizeof *q);
    for (size_t j = 0; j < columns; j += HK_SPAN) {
        const size_t end = j + HK_SPAN < columns ? j + HK_SPAN : columns;
        for (size_t i = 0; i < rows; i += 2)
            for (size_t k = 0; k < wide; k += HK_THIN) {
                const int two = i + 1 < rows;
                hk_along_two(m + i * columns, m + (i + (size_t)two) * columns, j, end, p + i * wide + k,
                             two ? p + (i + 1) * wide + k : none, columns, q + k * columns);
            }
    }
}

/* out = p q, and m -= out. */
HK_BODY hk_apart_any(
    float *m, size_t rows, size_t columns, const float *p, const float *q, size_t wide, float *out) {
    for (size_t span = 0; span < columns; span += HK_SPAN) {
        const size_t end = span + HK_SPAN < columns ? span + HK_SPAN : columns;
        for (size_t i = 0; i < rows; i++) {
            const float *by = p + i * wide;
            float *x = m + i * columns, *to = out + i * columns;
            size_t j = span;
            for (; j + HK_LANES <= end; j += HK_LANES) {
                hk_lanes s = HK_AT(q + j) * by[0];
                __builtin_prefetch(x + j + HK_AHEAD, 1);
                __builtin_prefetch(to + j + HK_AHEAD, 1);
                for (size_t k = 1; k < wide; k++)
                    s += HK_AT(q + k * columns + j) * by[k];
                HK_INTO(to + j) = s;
                HK_INTO(x + j) = HK_AT(x + j) - s;
            }
            for (; j < end; j++) {
                float s = q[j] * by[0];
                for (size_t k = 1; k < wide; k++)
                    s += q[k * columns + j] * by[k];
                to[j] = s;
                x[j] -= s;
            }
        }
    }
}

#if defined(__x86_64__)
#define HK_BY_LEVEL(name, given, passed) \
    __attribute__((target("avx2"))) static void name##_avx2 given { name##_any passed; } \
    static void name given { \
        if (__builtin_cpu_supports("avx2")) \
            name##_avx2 passed; \
        else \
            name##_any passed; \
    }
#else
#define HK_BY_LEVEL(name, given, passed) static void name given { name##_any passed; }
#endif
HK_BY_LEVEL(hk_across, (const float *m, size_t rows, size_t columns, const float *q, size_t wide, float *p),
            (m, rows, columns, q, wide, p))
HK_BY_LEVEL(hk_along, (const float *m, size_t rows, size_t columns, const float *p, size_t wide, float *q),
            (m, rows, columns, p, wide, q))
HK_BY_LEVEL(hk_apart, (float *m, size_t rows, size_t columns, const float *p, const float *q, size_t wide, float *out),
            (m, rows, columns, p, q, wide, out))

/* Make the columns of x, rows x wide, orthonormal, by Gram and Schmidt's way, twice; what is left of a column that the
 * others make up becomes zeros. */
static void hk_orthonormal(double *x, size_t rows, size_t wide) {
    for (size_t k = 0; k < wide; k++) {
        double *own = x + k, whole = 0.0, left = 0.0;
        for (size_t i = 0; i < rows; i++)
            whole += own[i * wide] * own[i * wide];
        for (size_t turn = 0; turn < 2; turn++)
            for (size_t other = 0; other < k; other++) {
                double part = 0.0;
                for (size_t i = 0; i < rows; i++)
                    part += own[i * wide] * x[i * wide + other];
                for (size_t i = 0; i < rows; i++)
                    own[i * wide] -= part * x[i * wide + other];
            }
        for (size_t i = 0; i < rows; i++)
            left += own[i * wide] * own[i * wide];
        const double scale = left > 1e-12 * whole ? 1.0 / sqrt(left) : 0.0;
        for (size_t i = 0; i < rows; i++)
            own[i * wide] *= scale;
    }
}

#endif
