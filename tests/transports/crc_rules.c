/* The rules of transports/crc.h: with the processor's instruction and without it, and however the bytes are cut, a check is
 * the same, as ranks on other processors compare it; and each single bit counts. */
#include <stdio.h>

#include "transports/crc.h"

enum { MOST = 260 };

static uint32_t in_pieces(const unsigned char *p, size_t n, size_t first, int slow) {
    hk_crc3 c;
    hk_crc3_begin(&c);
    for (size_t at = 0, piece = first; at < n; at += piece, piece = piece % 31 + 1) {
        if (piece > n - at) piece = n - at;
        if (slow) hk_crc3_slow(&c, p + at, piece);
        else hk_crc3_add(&c, p + at, piece);
    }
    return hk_crc3_end(&c);
}

int main(void) {
    unsigned char bytes[MOST];
    for (int i = 0; i < MOST; i++) bytes[i] = (unsigned char)(i * 7919 >> 3);
    for (size_t n = 0; n <= MOST; n++) {
        const uint32_t whole = hk_check_of(bytes, n), pieces = in_pieces(bytes, n, MOST, 0);
        if (hk_check_slow(bytes, n) != whole) return printf("of %zu bytes: without the instruction it is another one\n", n), 1;
        for (size_t first = 1; first < 40; first++)
            if (in_pieces(bytes, n, first, 0) != pieces || in_pieces(bytes, n, first, 1) != pieces)
                return printf("of %zu bytes: cut from %zu on it is another one\n", n, first), 1;
        for (size_t bit = 0; bit < 8 * n; bit++) {
            bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
            if (hk_check_of(bytes, n) == whole || in_pieces(bytes, n, MOST, 0) == pieces)
                return printf("of %zu bytes: bit %zu does not count\n", n, bit), 1;
            bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        }
    }
    return 0;
}
