/* The places of the elements of a vector of at least some magnitude.
 *
 * Magnitudes are compared as whole numbers, of which a NaN's is the largest.  Of each 32 elements there is a mask, whose
 * bits are those of the elements that count: most have none.
 */
#ifndef HK_SELECT_H
#define HK_SELECT_H

#include <stddef.h>
#include <stdint.h>

#define HK_MAGNITUDE 0x7fffffffu

static size_t hk_select_any(
    const uint32_t *x, size_t begin, size_t count, uint32_t least, int64_t *places, size_t room, size_t found) {
    for (size_t i = begin; i < count; i++)
        if ((x[i] & HK_MAGNITUDE) >= least) {
            if (found < room)
                places[found] = (int64_t)i;
            found++;
        }
    return found;
}

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx2")))
static uint32_t hk_select_mask(const uint32_t *x, __m256i below) {
    const __m256i magnitude = _mm256_set1_epi32((int)HK_MAGNITUDE);
    uint32_t mask = 0;
    for (int j = 0; j < 4; j++) {
        __m256i each = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(x + 8 * j)), magnitude);
        mask |= (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(each, below))) << 8 * j;
    }
    return mask;
}

__attribute__((target("avx2")))
static size_t hk_select_avx2(const uint32_t *x, size_t count, uint32_t least, int64_t *places, size_t room) {
    const __m256i below = _mm256_set1_epi32((int)least - 1);
    size_t found = 0, i = 0;
    for (; i + 32 <= count && found + 32 <= room; i += 32)
        for (uint32_t mask = hk_select_mask(x + i, below); mask; mask &= mask - 1)
            places[found++] = (int64_t)(i + (size_t)__builtin_ctz(mask));
    return hk_select_any(x, i, count, least, places, room, found);
}
#endif

/* How many there are; the first `room` of them are in `places`, ascending. */
static size_t hk_select(const uint32_t *x, size_t count, uint32_t least, int64_t *places, size_t room) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        return hk_select_avx2(x, count, least, places, room);
#endif
    return hk_select_any(x, 0, count, least, places, room, 0);
}

#endif
