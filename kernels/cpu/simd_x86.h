/* fp16 and bfloat16 loops for x86-64 levels: conversions that compilers do not find in the bit code, or find slowly.
 *
 * Included with the level's target set.  Two registers of eight fp32 together take the place of one fp32 in the
 * bodies of fold.h; what does not fill both goes through the scalar code.  Which element sits in which lane is the
 * dtype's affair: combining and partial results do not care. */
typedef struct { __m256 x, y; } lanes;

/* fp16: the first half of the elements in x, the second in y. */
HK_INLINE lanes get_lanes_f16(const any_f16 *p, size_t i) {
    lanes v = {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + i))),
               _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + i + 8)))};
    return v;
}

HK_INLINE void put_lanes_f16(any_f16 *p, size_t i, lanes v) {
    _mm_storeu_si128((__m128i *)(p + i), _mm256_cvtps_ph(v.x, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(p + i + 8), _mm256_cvtps_ph(v.y, _MM_FROUND_TO_NEAREST_INT));
}

/* bfloat16: the even elements in x, the odd ones in y, so that nothing has to change lanes. */
HK_INLINE lanes get_lanes_bf16(const any_bf16 *p, size_t i) {
    __m256i pairs = _mm256_loadu_si256((const __m256i *)(p + i));
    lanes v = {_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)),
                   _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000)))};
    return v;
}

/* hk_to_bf16 before the shift. */
HK_INLINE __m256i round_bf16(__m256 v) {
    __m256i bits = _mm256_castps_si256(v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
}

HK_INLINE void put_lanes_bf16(any_bf16 *p, size_t i, lanes v) {
    __m256i even = _mm256_srli_epi32(round_bf16(v.x), 16);
    _mm256_storeu_si256((__m256i *)(p + i), _mm256_blend_epi16(even, round_bf16(v.y), 0xaa));
}

/* The elements that do not fill the lanes; not in the bit code, of which compilers make vectors for these few. */
HK_INLINE f32 get_one_f16(const any_f16 *p, size_t i) { return _cvtsh_ss(p[i]); }
HK_INLINE void put_one_f16(any_f16 *p, size_t i, f32 v) { p[i] = _cvtss_sh(v, _MM_FROUND_TO_NEAREST_INT); }
HK_INLINE f32 get_one_bf16(const any_bf16 *p, size_t i) { return get_bf16(p, i); }
HK_INLINE void put_one_bf16(any_bf16 *p, size_t i, f32 v) { put_bf16(p, i, v); }

/* Partial results lie as the lanes do. */
HK_INLINE lanes get_lanes_f32(const any_f32 *p, size_t i) {
    lanes v = {_mm256_loadu_ps((const void *)(p + i)), _mm256_loadu_ps((const void *)(p + i + 8))};
    return v;
}

HK_INLINE void put_lanes_f32(any_f32 *p, size_t i, lanes v) {
    _mm256_storeu_ps((void *)(p + i), v.x);
    _mm256_storeu_ps((void *)(p + i + 8), v.y);
}

/* The laws of sum_f32, ... in elements.h.  minps gives its second operand for equals and NaN. */
#define HK_ON_LANES(name, EXPRESSION)                                                                       \
    HK_INLINE __m256 register_##name(__m256 a, __m256 b) { return EXPRESSION; }                             \
    HK_INLINE lanes lanes_##name(lanes a, lanes b) {                                                        \
        lanes v = {register_##name(a.x, b.x), register_##name(a.y, b.y)};                                   \
        return v;                                                                                           \
    }

HK_ON_LANES(sum_f32, _mm256_add_ps(a, b))
HK_ON_LANES(prod_f32, _mm256_mul_ps(a, b))
HK_ON_LANES(min_f32, _mm256_blendv_ps(_mm256_min_ps(b, a), b, _mm256_cmp_ps(b, b, _CMP_UNORD_Q)))
HK_ON_LANES(max_f32, _mm256_blendv_ps(_mm256_max_ps(b, a), b, _mm256_cmp_ps(b, b, _CMP_UNORD_Q)))

HK_INLINE lanes lanes_all(float value) {
    lanes v = {_mm256_set1_ps(value), _mm256_set1_ps(value)};
    return v;
}

#undef HK_ON_LANES

#define HK_LANES_LOOP(BODY, S, A, OP, n)                                                                    \
    size_t i = 0;                                                                                           \
    for (; i + HK_LANES <= (n); i += HK_LANES) {                                                            \
        BODY(lanes, get_lanes_##S, put_lanes_##S, get_lanes_f32, put_lanes_f32, lanes_##OP, i)              \
    }                                                                                                       \
    for (; i < (n); i++) {                                                                                  \
        BODY(A, get_one_##S, put_one_##S, get_##A, put_##A, OP, i)                                          \
    }
