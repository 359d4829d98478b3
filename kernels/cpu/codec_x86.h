/* The codes of a block in vectors of eight, for x86-64 levels; once per level, as table.h.  The same bits as the loops over
 * codes.h that other levels have (codec_whole.h, codec_floats.h), which compilers turn into slower code: docs/compression.md
 * has the times.
 *
 * n is a multiple of 64.  No float is a NaN. */

/* 32 numbers of -128 to 127, in bytes. */
HK_INLINE __m256i AT(bytes_of)(__m256i a, __m256i b, __m256i c, __m256i d) {
    const __m256i all = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    return _mm256_permutevar8x32_epi32(all, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* hk_cut */
HK_INLINE __m256 AT(cut_lanes)(__m256 value, f32 most) {
    return _mm256_min_ps(_mm256_max_ps(value, _mm256_set1_ps(-most)), _mm256_set1_ps(most));
}

/* hk_nearest, but not limited to `most`.  With `cut` a float that is too large for an integer is cut off first. */
HK_INLINE __m256i AT(nearest_lanes)(const f32 *x, f32 by, f32 most, int cut) {
    const __m256 value = _mm256_mul_ps(_mm256_loadu_ps(x), _mm256_set1_ps(by));
    return _mm256_cvtps_epi32(cut ? AT(cut_lanes)(value, most) : value);
}

HK_INLINE void AT(nearest_codes)(u8 *restrict codes, const f32 *restrict x, size_t n, f32 by, i32 most, int zero,
                                 int cut) {
    const __m256i high = _mm256_set1_epi8((char)most), low = _mm256_set1_epi8((char)-most);
    const f32 limit = (f32)most;
    for (size_t i = 0; i < n; i += 32, x += 32) {
        const __m256i a = AT(nearest_lanes)(x, by, limit, cut), b = AT(nearest_lanes)(x + 8, by, limit, cut);
        const __m256i c = AT(nearest_lanes)(x + 16, by, limit, cut), d = AT(nearest_lanes)(x + 24, by, limit, cut);
        const __m256i limited = _mm256_max_epi8(_mm256_min_epi8(AT(bytes_of)(a, b, c, d), high), low);
        _mm256_storeu_si256((__m256i *)(codes + i), _mm256_add_epi8(limited, _mm256_set1_epi8((char)zero)));
    }
}

/* hk_roll of eight numbers. */
HK_INLINE __m256i AT(roll_lanes)(u64 key, __m256i i) {
    __m256i h = _mm256_mullo_epi32(i, _mm256_set1_epi32((int)0x9e3779b9u));
    h = _mm256_add_epi32(h, _mm256_set1_epi32((int)(u32)key));
    h = _mm256_mullo_epi32(_mm256_xor_si256(h, _mm256_srli_epi32(h, 16)), _mm256_set1_epi32((int)0x85ebca6bu));
    h = _mm256_add_epi32(_mm256_xor_si256(h, _mm256_srli_epi32(h, 13)), _mm256_set1_epi32((int)(u32)(key >> 32)));
    h = _mm256_mullo_epi32(h, _mm256_set1_epi32((int)0xc2b2ae35u));
    return _mm256_xor_si256(h, _mm256_srli_epi32(h, 16));
}

/* hk_rolled, plus `offset`. */
HK_INLINE __m256i AT(rolled_lanes)(const f32 *x, __m256 scale, i32 most, __m256i sixteen, int offset) {
    const __m256 middle = _mm256_add_ps(_mm256_cvtepi32_ps(sixteen), _mm256_set1_ps(0.4375f));
    const __m256 unit = _mm256_mul_ps(middle, _mm256_set1_ps(0x1p-16f));
    const __m256 part = AT(cut_lanes)(_mm256_div_ps(_mm256_loadu_ps(x), scale), (f32)most);
    const __m256 sum = _mm256_add_ps(_mm256_add_ps(part, _mm256_set1_ps((f32)most)), unit);
    const __m256i whole = _mm256_min_epi32(_mm256_cvttps_epi32(sum), _mm256_set1_epi32(2 * most));
    return _mm256_add_epi32(whole, _mm256_set1_epi32(offset - most));
}

HK_INLINE void AT(rolled_codes)(u8 *restrict codes, const f32 *restrict x, size_t n, f32 scale, i32 most, int zero,
                                hk_dice dice) {
    const size_t half = n / 2;
    const __m256 by = _mm256_set1_ps(scale);
    __m256i at = _mm256_add_epi32(_mm256_set1_epi32((int)dice.first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    for (size_t i = 0; i < half; i += 32) {
        __m256i first[4], second[4];
        HK_UNROLL for (int j = 0; j < 4; j++, at = _mm256_add_epi32(at, _mm256_set1_epi32(8))) {
            const __m256i roll = AT(roll_lanes)(dice.key, at);
            const __m256i low = _mm256_and_si256(roll, _mm256_set1_epi32(0xffff)), high = _mm256_srli_epi32(roll, 16);
            first[j] = AT(rolled_lanes)(x + i + 8 * j, by, most, low, zero);
            second[j] = AT(rolled_lanes)(x + half + i + 8 * j, by, most, high, zero);
        }
        _mm256_storeu_si256((__m256i *)(codes + i), AT(bytes_of)(first[0], first[1], first[2], first[3]));
        _mm256_storeu_si256((__m256i *)(codes + half + i), AT(bytes_of)(second[0], second[1], second[2], second[3]));
    }
}

/* hk_e4m3fn_at_most_448 as a byte with a sign, which is what bytes_of packs. */
HK_INLINE __m256i AT(e4m3fn_lanes)(const f32 *x, f32 by) {
    const __m256 value = _mm256_mul_ps(_mm256_loadu_ps(x), _mm256_set1_ps(by));
    const __m256i bits = _mm256_castps_si256(value), least = _mm256_set1_epi32(121 << 23);
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    const __m256i power = _mm256_max_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(0x7f800000)), least);
    const __m256i magic = _mm256_add_epi32(power, _mm256_set1_epi32(20 << 23));
    const __m256 sum = _mm256_add_ps(_mm256_castsi256_ps(magnitude), _mm256_castsi256_ps(magic));
    const __m256i steps = _mm256_sub_epi32(_mm256_castps_si256(sum), magic);
    const __m256i small = _mm256_add_epi32(steps, _mm256_srli_epi32(_mm256_sub_epi32(power, least), 20));
    const __m256i limited = _mm256_min_epi32(small, _mm256_set1_epi32(0x7e));
    return _mm256_or_si256(limited, _mm256_and_si256(_mm256_srai_epi32(bits, 24), _mm256_set1_epi32((int)0xffffff80u)));
}

HK_INLINE void AT(e4m3fn_codes)(u8 *restrict codes, const f32 *restrict x, size_t n, f32 by) {
    for (size_t i = 0; i < n; i += 32, x += 32) {
        const __m256i a = AT(e4m3fn_lanes)(x, by), b = AT(e4m3fn_lanes)(x + 8, by);
        const __m256i c = AT(e4m3fn_lanes)(x + 16, by), d = AT(e4m3fn_lanes)(x + 24, by);
        _mm256_storeu_si256((__m256i *)(codes + i), AT(bytes_of)(a, b, c, d));
    }
}

/* The one area of codes of 4 or 2 bits (pack.h), whose stride is a multiple of 32. */
HK_INLINE void AT(pack_one_area)(u8 *restrict out, const u8 *restrict codes, size_t stride, int bits) {
    for (size_t i = 0; i < stride; i += 32, codes += 32) {
        __m256i bytes = _mm256_loadu_si256((const __m256i *)codes);
        HK_UNROLL for (int j = 1; j < 8 / bits; j++) {
            const __m256i more = _mm256_loadu_si256((const __m256i *)(codes + (size_t)j * stride));
            bytes = _mm256_or_si256(bytes, _mm256_slli_epi16(more, j * bits));
        }
        _mm256_storeu_si256((__m256i *)(out + i), bytes);
    }
}
