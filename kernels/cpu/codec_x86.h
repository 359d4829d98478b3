/* Heads, codes and floats of a block in vectors of eight, for x86-64 levels; once per level, as table.h.  They give the same
 * bits as the loops over codes.h that other levels have (codec_heads.h, codec_whole.h, codec_floats.h, codec_signs.h).
 * Compilers turn those into slower code: docs/compression.md has the times.
 *
 * n is a multiple of 64.  Codes: no float is a NaN. */

/* Four vectors a round: a CPU guesses better where a loop ends the fewer its rounds are. */
HK_INLINE f32 AT(largest)(const f32 *x, size_t n) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i top[4] = {_mm256_setzero_si256(), top[0], top[0], top[0]};
    for (size_t i = 0; i < n; i += 32)
        HK_UNROLL for (size_t j = 0; j < 4; j++) {
            const __m256i bits = _mm256_loadu_si256((const __m256i *)(x + i + 8 * j));
            top[j] = _mm256_max_epu32(top[j], _mm256_and_si256(bits, magnitude));
        }
    const __m256i all = _mm256_max_epu32(_mm256_max_epu32(top[0], top[1]), _mm256_max_epu32(top[2], top[3]));
    __m128i few = _mm_max_epu32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
    few = _mm_max_epu32(few, _mm_shuffle_epi32(few, 0x4e));
    return hk_float((u32)_mm_cvtsi128_si32(_mm_max_epu32(few, _mm_shuffle_epi32(few, 0xb1))));
}

/* hk_add_sums */
HK_INLINE f32 AT(add_lanes)(const __m256 *sums) {
    const __m256 eight = _mm256_add_ps(_mm256_add_ps(sums[0], sums[2]), _mm256_add_ps(sums[1], sums[3]));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

HK_INLINE f32 AT(squares)(const f32 *restrict x, size_t n, f32 by) {
    __m256 sums[4] = {_mm256_setzero_ps(), sums[0], sums[0], sums[0]};
    for (size_t i = 0; i < n; i += 32)
        HK_UNROLL for (size_t j = 0; j < 4; j++) {
            const __m256 part = _mm256_mul_ps(_mm256_loadu_ps(x + i + 8 * j), _mm256_set1_ps(by));
            sums[j] = _mm256_add_ps(sums[j], _mm256_mul_ps(part, part));
        }
    return AT(add_lanes)(sums);
}

HK_INLINE f32 AT(magnitudes)(const f32 *restrict x, size_t n, f32 by) {
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    __m256 sums[4] = {_mm256_setzero_ps(), sums[0], sums[0], sums[0]};
    for (size_t i = 0; i < n; i += 32)
        HK_UNROLL for (size_t j = 0; j < 4; j++) {
            const __m256 part = _mm256_and_ps(_mm256_loadu_ps(x + i + 8 * j), magnitude);
            sums[j] = _mm256_add_ps(sums[j], _mm256_mul_ps(part, _mm256_set1_ps(by)));
        }
    return AT(add_lanes)(sums);
}

HK_INLINE hk_sides AT(sides)(const f32 *restrict x, size_t n, f32 by) {
    __m256 above[4] = {_mm256_setzero_ps(), above[0], above[0], above[0]};
    __m256 below[4] = {above[0], above[0], above[0], above[0]}, minus[4] = {above[0], above[0], above[0], above[0]};
    for (size_t i = 0; i < n; i += 32)
        HK_UNROLL for (size_t j = 0; j < 4; j++) {
            const __m256 value = _mm256_loadu_ps(x + i + 8 * j), part = _mm256_mul_ps(value, _mm256_set1_ps(by));
            const __m256 is = _mm256_cmp_ps(value, _mm256_setzero_ps(), _CMP_LT_OQ);
            above[j] = _mm256_add_ps(above[j], _mm256_andnot_ps(is, part));
            below[j] = _mm256_add_ps(below[j], _mm256_and_ps(is, part));
            minus[j] = _mm256_add_ps(minus[j], _mm256_and_ps(is, _mm256_set1_ps(1)));
        }
    const hk_sides found = {AT(add_lanes)(above), AT(add_lanes)(below), AT(add_lanes)(minus)};
    return found;
}

/* Two vectors of 16-bit numbers in bytes, in the order that _mm256_packs_epi32 gave each of two vectors. */
HK_INLINE __m256i AT(bytes_of)(__m256i first, __m256i second) {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, second), order);
}

/* hk_at_most, plus `zero`, of 32 codes. */
HK_INLINE void AT(put_codes)(u8 *codes, __m256i whole, i32 most, int zero) {
    const __m256i high = _mm256_set1_epi8((char)most), low = _mm256_set1_epi8((char)-most);
    const __m256i limited = _mm256_max_epi8(_mm256_min_epi8(whole, high), low);
    _mm256_storeu_si256((__m256i *)codes, _mm256_add_epi8(limited, _mm256_set1_epi8((char)zero)));
}

/* hk_nearest, but for the limit. */
HK_INLINE __m256i AT(nearest_lanes)(const f32 *x, f32 by) {
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), _mm256_set1_ps(by)));
}

HK_INLINE void AT(nearest_codes)(u8 *restrict codes, const f32 *restrict x, size_t n, f32 by, i32 most, int zero) {
    for (size_t i = 0; i < n; i += 32, x += 32) {
        const __m256i first = _mm256_packs_epi32(AT(nearest_lanes)(x, by), AT(nearest_lanes)(x + 8, by));
        const __m256i second = _mm256_packs_epi32(AT(nearest_lanes)(x + 16, by), AT(nearest_lanes)(x + 24, by));
        AT(put_codes)(codes + i, AT(bytes_of)(first, second), most, zero);
    }
}

/* Which of 32 floats are below zero: bytes of ones. */
HK_INLINE __m256i AT(below_zero)(const f32 *x) {
    __m256i below[4];
    HK_UNROLL for (int j = 0; j < 4; j++)
        below[j] = _mm256_castps_si256(_mm256_cmp_ps(_mm256_loadu_ps(x + 8 * j), _mm256_setzero_ps(), _CMP_LT_OQ));
    return AT(bytes_of)(_mm256_packs_epi32(below[0], below[1]), _mm256_packs_epi32(below[2], below[3]));
}

/* The bits of floats; `stride` is an eighth of the block. */
HK_INLINE size_t AT(bits_below_zero)(u8 *restrict out, const f32 *restrict x, size_t stride) {
    size_t i = 0;
    for (; i + 32 <= stride; i += 32) {
        __m256i bits = _mm256_setzero_si256();
        HK_UNROLL for (int j = 0; j < 8; j++) {
            const __m256i bit = _mm256_set1_epi8((char)(1 << j));
            bits = _mm256_or_si256(bits, _mm256_and_si256(AT(below_zero)(x + i + (size_t)j * stride), bit));
        }
        _mm256_storeu_si256((__m256i *)(out + i), bits);
    }
    return i;
}

/* hk_give, eight at a time. */
HK_INLINE void AT(give_lanes)(f32 *x, __m256 values, int add) {
    _mm256_storeu_ps(x, add ? _mm256_add_ps(_mm256_loadu_ps(x), values) : values);
}

HK_INLINE __m256i AT(eight_bytes)(const u8 *in) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)in));
}

HK_INLINE void AT(get_bits)(f32 *restrict x, const u8 *restrict in, size_t block, f32 above, f32 below, int add) {
    const size_t stride = block / 8;
    const __m256 no = _mm256_set1_ps(above), yes = _mm256_set1_ps(below);
    for (size_t i = 0; i < stride; i += 8) {
        const __m256i bytes = AT(eight_bytes)(in + i);
        HK_UNROLL for (int j = 0; j < 8; j++) {
            const __m256 bit = _mm256_castsi256_ps(_mm256_slli_epi32(bytes, 31 - j)); /* where blendv looks */
            AT(give_lanes)(x + i + (size_t)j * stride, _mm256_blendv_ps(no, yes, bit), add);
        }
    }
}

/* What the codes of 4 or 2 bits stand for (pack.h), as pack_one_area has put them; four floats are all that 2 bits tell. */
HK_INLINE void AT(give_nibbles)(f32 *restrict x, const u8 *restrict in, size_t stride, f32 scale, int add) {
    const __m256i low = _mm256_set1_epi32(15), zero = _mm256_set1_epi32(8);
    const __m256 by = _mm256_set1_ps(scale);
    for (size_t i = 0; i < stride; i += 8) {
        const __m256i bytes = AT(eight_bytes)(in + i);
        const __m256i first = _mm256_sub_epi32(_mm256_and_si256(bytes, low), zero);
        const __m256i second = _mm256_sub_epi32(_mm256_srli_epi32(bytes, 4), zero);
        AT(give_lanes)(x + i, _mm256_mul_ps(_mm256_cvtepi32_ps(first), by), add);
        AT(give_lanes)(x + stride + i, _mm256_mul_ps(_mm256_cvtepi32_ps(second), by), add);
    }
}

HK_INLINE void AT(give_pairs)(f32 *restrict x, const u8 *restrict in, size_t stride, f32 scale, int add) {
    const __m256 values = _mm256_mul_ps(_mm256_setr_ps(-2, -1, 0, 1, -2, -1, 0, 1), _mm256_set1_ps(scale));
    for (size_t i = 0; i < stride; i += 8) {
        const __m256i bytes = AT(eight_bytes)(in + i);
        HK_UNROLL for (int j = 0; j < 4; j++)
            AT(give_lanes)(x + i + (size_t)j * stride, _mm256_permutevar_ps(values, _mm256_srli_epi32(bytes, 2 * j)),
                           add);
    }
}

HK_INLINE void AT(give_one_area)(f32 *restrict x, const u8 *restrict in, size_t block, int bits, f32 scale, int add) {
    if (bits == 4)
        AT(give_nibbles)(x, in, block / 2, scale, add);
    else
        AT(give_pairs)(x, in, block / 4, scale, add);
}

/* hk_roll of eight numbers; `at` is the part of it that grows with i, from one step to the next. */
HK_INLINE __m256i AT(roll_lanes)(__m256i at, u64 key) {
    __m256i h = _mm256_xor_si256(at, _mm256_srli_epi32(at, 16));
    h = _mm256_mullo_epi32(h, _mm256_set1_epi32((int)0x85ebca6bu));
    h = _mm256_add_epi32(_mm256_xor_si256(h, _mm256_srli_epi32(h, 13)), _mm256_set1_epi32((int)(u32)(key >> 32)));
    h = _mm256_mullo_epi32(h, _mm256_set1_epi32((int)0xc2b2ae35u));
    return _mm256_xor_si256(h, _mm256_srli_epi32(h, 16));
}

/* hk_rolled, but for the limit. */
HK_INLINE __m256i AT(rolled_lanes)(const f32 *x, f32 by, __m256i roll) {
    const __m256 spread = _mm256_mul_ps(_mm256_cvtepi32_ps(roll), _mm256_set1_ps(HK_SPREAD));
    return _mm256_cvtps_epi32(_mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(x), _mm256_set1_ps(by)), spread));
}

/* The random numbers of the next codes are made between these codes: each number takes a long chain of instructions. */
HK_INLINE void AT(rolled_codes)(u8 *restrict codes, const f32 *restrict x, size_t n, f32 by, i32 most, int zero,
                                hk_dice dice) {
    const size_t half = n / 2;
    const __m256i step = _mm256_set1_epi32((int)(8 * HK_DICE_STEP));
    __m256i at = _mm256_add_epi32(_mm256_set1_epi32((int)dice.first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    at = _mm256_mullo_epi32(at, _mm256_set1_epi32((int)HK_DICE_STEP));
    at = _mm256_add_epi32(at, _mm256_set1_epi32((int)(u32)dice.key));
    __m256i rolls[4];
    HK_UNROLL for (int j = 0; j < 4; j++, at = _mm256_add_epi32(at, step)) rolls[j] = AT(roll_lanes)(at, dice.key);
    for (size_t i = 0; i < half; i += 32) {
        __m256i first[2], second[2];
        HK_UNROLL for (int j = 0; j < 2; j++, x += 16) {
            const __m256i a = rolls[2 * j], b = rolls[2 * j + 1];
            rolls[2 * j] = AT(roll_lanes)(at, dice.key), at = _mm256_add_epi32(at, step);
            first[j] = _mm256_packs_epi32(AT(rolled_lanes)(x, by, a), AT(rolled_lanes)(x + 8, by, b));
            rolls[2 * j + 1] = AT(roll_lanes)(at, dice.key), at = _mm256_add_epi32(at, step);
            second[j] = _mm256_packs_epi32(AT(rolled_lanes)(x + half, by, _mm256_slli_epi32(a, 16)),
                                           AT(rolled_lanes)(x + half + 8, by, _mm256_slli_epi32(b, 16)));
        }
        AT(put_codes)(codes + i, AT(bytes_of)(first[0], first[1]), most, zero);
        AT(put_codes)(codes + half + i, AT(bytes_of)(second[0], second[1]), most, zero);
    }
}

/* hk_e4m3fn_at_most_448 of a magnitude, plus 121 * 8: the steps are the last bits of the sum, and a power of two more is
 * eight codes more. */
HK_INLINE __m256i AT(e4m3fn_lanes)(__m256i bits) {
    const __m256i least = _mm256_set1_epi32(121 << 23), twenty = _mm256_set1_epi32(20 << 23);
    const __m256i power = _mm256_max_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(0x7f800000)), least);
    const __m256i magic = _mm256_add_epi32(power, twenty);
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)));
    const __m256i sum = _mm256_castps_si256(_mm256_add_ps(magnitude, _mm256_castsi256_ps(magic)));
    return _mm256_sub_epi32(sum, _mm256_sub_epi32(magic, _mm256_srli_epi32(power, 20)));
}

HK_INLINE void AT(e4m3fn_codes)(u8 *restrict codes, const f32 *restrict x, size_t n, f32 by) {
    for (size_t i = 0; i < n; i += 32) {
        __m256i code[2], sign[2];
        HK_UNROLL for (int j = 0; j < 2; j++, x += 16) {
            const __m256i a = _mm256_castps_si256(_mm256_mul_ps(_mm256_loadu_ps(x), _mm256_set1_ps(by)));
            const __m256i b = _mm256_castps_si256(_mm256_mul_ps(_mm256_loadu_ps(x + 8), _mm256_set1_ps(by)));
            const __m256i both = _mm256_packs_epi32(AT(e4m3fn_lanes)(a), AT(e4m3fn_lanes)(b));
            code[j] = _mm256_sub_epi16(both, _mm256_set1_epi16(121 * 8));
            sign[j] = _mm256_packs_epi32(a, b);
        }
        const __m256i signs = _mm256_and_si256(AT(bytes_of)(sign[0], sign[1]), _mm256_set1_epi8((char)0x80));
        _mm256_storeu_si256((__m256i *)(codes + i), _mm256_or_si256(AT(bytes_of)(code[0], code[1]), signs));
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
