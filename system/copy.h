/* Copies of many bytes, where the C library's are slow.
 *
 * glibc copies from some kilobytes on by `rep movsb`.  Between a slot and an array that takes several times as long on an
 * AMD EPYC (Zen 3) as a loop over vectors: `hocket bench broadcast -n 2 -b 64K -e 4M -f 4`, 1 MiB, 591 us, and 48 where
 * GLIBC_TUNABLES=glibc.cpu.x86_rep_movsb_threshold=100000000 makes glibc use vectors.  docs/performance.md has more. */
#ifndef HK_COPY_H
#define HK_COPY_H

#include <stddef.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>

enum { HK_COPY_MANY = 2048 }; /* fewer bytes glibc copies by vectors itself */

__attribute__((target("avx"), noinline, unused)) static void hk_copy_vectors(char *dst, const char *src, size_t len) {
    size_t i = 0;
    for (; i + 128 <= len; i += 128) {
        const __m256i a = _mm256_loadu_si256((const __m256i *)(src + i));
        const __m256i b = _mm256_loadu_si256((const __m256i *)(src + i + 32));
        const __m256i c = _mm256_loadu_si256((const __m256i *)(src + i + 64));
        const __m256i d = _mm256_loadu_si256((const __m256i *)(src + i + 96));
        _mm256_storeu_si256((__m256i *)(dst + i), a);
        _mm256_storeu_si256((__m256i *)(dst + i + 32), b);
        _mm256_storeu_si256((__m256i *)(dst + i + 64), c);
        _mm256_storeu_si256((__m256i *)(dst + i + 96), d);
    }
    memcpy(dst + i, src + i, len - i);
}
#endif

/* As memcpy. */
static inline void hk_copy(void *dst, const void *src, size_t len) {
#ifdef __x86_64__
    if (len >= HK_COPY_MANY && __builtin_cpu_is("amd") && __builtin_cpu_supports("avx")) {
        hk_copy_vectors((char *)dst, (const char *)src, len);
        return;
    }
#endif
    memcpy(dst, src, len);
}

#endif
