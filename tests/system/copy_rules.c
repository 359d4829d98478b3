/* hk_copy and its vectors copy what memcpy copies, and no byte more: AddressSanitizer watches both ends. */
#include <stdio.h>
#include <stdlib.h>

#include "system/copy.h"

enum { LONGEST = 4500, OFFSETS = 33 };

typedef void copies(char *dst, const char *src, size_t len);

/* Both copies, of which the first is compared with the second. */
static void twice(char *dst, const char *src, size_t len) {
    char *also = malloc(len + 1);
    hk_copy_twice(also + 1, dst, src, len);
    if (memcmp(also + 1, dst, len) != 0) memset(dst, 0, len);
    free(also);
}

static void by_hk_copy(char *dst, const char *src, size_t len) { hk_copy(dst, src, len); }

/* The last byte of each room is the last one copied, so that one more is an error at once. */
static int right(const char *name, copies *copy, size_t len, size_t to, size_t from) {
    char *src = malloc(from + len + 1), *dst = malloc(to + len + 1);
    char *first = src + 1 + from, *room = dst + 1 + to;
    for (size_t i = 0; i < from + len + 1; i++) src[i] = (char)(i * 31 + (i >> 8) * 7 + len);
    memset(dst, 0x55, to + len + 1);
    copy(room, first, len);
    int same = memcmp(room, first, len) == 0;
    for (size_t i = 0; i < to + 1; i++) same &= dst[i] == 0x55;
    if (!same) printf("%s: %zu bytes from offset %zu to %zu\n", name, len, from, to);
    free(src);
    free(dst);
    return same;
}

/* Behind by 1 to 31 bytes of a page, in either direction, and only if they are many. */
static int decides(void) {
    const char *const page = (const char *)0x7000000;
    int bad = 0;
    for (long apart = -4097; apart <= 8193; apart++) {
        const long behind = ((apart % 4096) + 4096) % 4096;
        const int wanted = behind >= 1 && behind <= 31;
        bad += hk_copy_is_behind(page + apart, page, 2048) != wanted || hk_copy_is_behind(page + apart, page, 2047);
    }
    if (bad) printf("hk_copy_is_behind: %d distances are wrong\n", bad);
    return bad;
}

int main(void) {
    copies *vectors = NULL;
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx")) vectors = hk_copy_vectors;
#endif
    int bad = decides();
    for (size_t len = 0; len <= LONGEST; len++) {
        const size_t to = len % OFFSETS, from = len / OFFSETS % OFFSETS;
        bad += !right("hk_copy", by_hk_copy, len, to, from);
        bad += !right("hk_copy_twice", twice, len, to, from);
        if (vectors) bad += !right("hk_copy_vectors", vectors, len, to, from);
    }
    for (size_t offset = 0; offset < OFFSETS * OFFSETS; offset++) {
        const size_t len = 4096 + offset;
        bad += !right("hk_copy", by_hk_copy, len, offset % OFFSETS, offset / OFFSETS);
        if (vectors) bad += !right("hk_copy_vectors", vectors, len, offset % OFFSETS, offset / OFFSETS);
    }
    return bad != 0;
}
