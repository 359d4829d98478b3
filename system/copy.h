/* Copies of many bytes, where the C library's are slow.
 *
 * glibc copies from some kilobytes on by `rep movsb`.  An AMD EPYC (Zen 3) takes ten times as long for it where
 * (to - from) mod 4096 is from 1 to 31: `python -m hocket.lab.memory.copies`.  From a slot, which begins with a page, to
 * a large array of NumPy's, which begins 16 bytes after one, that is each time.  There a loop over vectors copies.
 * Elsewhere `rep movsb` was as fast, or faster.  A Zen 4 copies as fast either way, so all of AMD's are treated alike. */
#ifndef HK_COPY_H
#define HK_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

enum {
    HK_COPY_MANY = 2048, /* fewer bytes glibc copies by vectors itself */
    HK_COPY_PAGE = 4096,
    HK_COPY_BEHIND = 31, /* bytes behind `from` in their pages, at most, and `to` is slow */
    HK_COPY_PAST = 1 << 22 /* from so many on a copy that nobody waits for goes past the caches */
};

/* Are these many bytes, and is `dst` a little behind `src` in their pages? */
static inline int hk_copy_is_behind(const void *dst, const void *src, size_t len) {
    const uintptr_t behind = ((uintptr_t)dst - (uintptr_t)src) & (HK_COPY_PAGE - 1);
    return len >= HK_COPY_MANY && behind - 1 < HK_COPY_BEHIND;
}

/* Is this a copy that `rep movsb` is slow for?  The kernel copies by it, too. */
static inline int hk_copy_is_slow(const void *dst, const void *src, size_t len) {
#ifdef __x86_64__
    return hk_copy_is_behind(dst, src, len) && __builtin_cpu_is("amd") && __builtin_cpu_supports("avx");
#else
    (void)dst, (void)src, (void)len;
    return 0;
#endif
}

#ifdef __x86_64__
/* `also` is NULL, or the second place: a constant where it is inlined. */
__attribute__((target("avx"), always_inline, unused)) static inline void hk_copy_by_vectors(char *dst, char *also,
                                                                                          const char *src, size_t len) {
    size_t i = 0;
    for (; i + 128 <= len; i += 128) {
        const __m256i a = _mm256_loadu_si256((const __m256i *)(src + i));
        const __m256i b = _mm256_loadu_si256((const __m256i *)(src + i + 32));
        const __m256i c = _mm256_loadu_si256((const __m256i *)(src + i + 64));
        const __m256i d = _mm256_loadu_si256((const __m256i *)(src + i + 96));
        for (char *to = dst; to != NULL; to = to == also ? NULL : also) {
            _mm256_storeu_si256((__m256i *)(to + i), a);
            _mm256_storeu_si256((__m256i *)(to + i + 32), b);
            _mm256_storeu_si256((__m256i *)(to + i + 64), c);
            _mm256_storeu_si256((__m256i *)(to + i + 96), d);
        }
    }
    memcpy(dst + i, src + i, len - i);
    if (also != NULL) memcpy(also + i, src + i, len - i);
}

__attribute__((target("avx"), noinline, unused)) static void hk_copy_vectors(char *dst, const char *src, size_t len) {
    hk_copy_by_vectors(dst, NULL, src, len);
}

__attribute__((target("avx"), noinline, unused)) static void hk_copy_vectors_twice(char *dst, char *also, const char *src,
                                                                                    size_t len) {
    hk_copy_by_vectors(dst, also, src, len);
}
#endif

/* As memcpy, past the caches.  The fence puts the bytes before what says that they are there. */
static inline void hk_copy_past(char *dst, const char *src, size_t len) {
#ifdef __SSE2__
    const size_t head = -(uintptr_t)dst & 15, begin = head < len ? head : len;
    const size_t end = begin + ((len - begin) & ~(size_t)15);
    memcpy(dst, src, begin);
    for (size_t i = begin; i < end; i += 16)
        _mm_stream_si128((__m128i *)(dst + i), _mm_loadu_si128((const __m128i *)(src + i)));
    _mm_sfence();
    memcpy(dst + end, src + end, len - end);
#else
    memcpy(dst, src, len);
#endif
}

/* As memcpy. */
static inline void hk_copy(void *dst, const void *src, size_t len) {
#ifdef __x86_64__
    if (hk_copy_is_slow(dst, src, len)) {
        hk_copy_vectors((char *)dst, (const char *)src, len);
        return;
    }
#endif
    memcpy(dst, src, len);
}

/* The same, of a part of `whole` bytes that this rank's next steps do not need: of many, what the caches hold stays there.
 * Measured on AMD's (docs/performance.md), so only there. */
static inline void hk_copy_of(void *dst, const void *src, size_t len, size_t whole) {
#ifdef __x86_64__
    if (whole >= HK_COPY_PAST && __builtin_cpu_is("amd")) {
        hk_copy_past((char *)dst, (const char *)src, len);
        return;
    }
#endif
    hk_copy(dst, src, len);
}

/* To two places, which do not overlap. */
static inline void hk_copy_twice(char *dst, char *also, const char *src, size_t len) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx")) {
        hk_copy_vectors_twice(dst, also, src, len);
        return;
    }
#endif
    memcpy(dst, src, len);
    memcpy(also, src, len);
}

#endif
