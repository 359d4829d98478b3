/* What the heads of elements are made of; once per level, as table.h. */
#ifndef HK_LANES
/* The largest magnitude. */
HK_INLINE f32 AT(largest)(const f32 *x, size_t n) {
    u32 top = 0;
    for (size_t i = 0; i < n; i++) {
        const u32 magnitude = hk_magnitude(x[i]);
        top = magnitude > top ? magnitude : top;
    }
    return hk_float(top);
}

/* The sum of (x * by)^2. */
HK_INLINE f32 AT(squares)(const f32 *restrict x, size_t n, f32 by) {
    f32 sums[HK_SUMS] = {0};
    for (size_t at = 0; at < n; at += HK_SUMS)
        for (size_t i = 0; i < HK_SUMS; i++) {
            const f32 part = x[at + i] * by;
            sums[i] += part * part;
        }
    return hk_add_sums(sums);
}

/* The sum of |x| * by. */
HK_INLINE f32 AT(magnitudes)(const f32 *restrict x, size_t n, f32 by) {
    f32 sums[HK_SUMS] = {0};
    for (size_t at = 0; at < n; at += HK_SUMS)
        for (size_t i = 0; i < HK_SUMS; i++) sums[i] += hk_float(hk_magnitude(x[at + i])) * by;
    return hk_add_sums(sums);
}
#endif
