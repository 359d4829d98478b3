/* Pieces of every kind are packed and unpacked to the same bits, and are never longer than is promised; then bytes of them
 * are changed and cut, and unpacked: what comes is refused or some bits, but no byte outside is touched.
 * argv: how many pieces.  Run under AddressSanitizer and UBSan by test_kernels.py. */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cpu/fold.h"
#define AT(name) name /* one level, compiled alone: all of reduce.h takes a minute */
#include "kernels/exact/lossless.h"

static uint64_t state = 88172645463325252u;

static uint64_t roll(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static unsigned char byte_of(int kind, size_t i, size_t width) {
    switch (kind) {
    case 0: return (unsigned char)roll();
    case 1: return 0;
    case 2: return (unsigned char)(roll() % 16 == 0 ? roll() : 0);
    case 3: return (unsigned char)(i % width == width - 1 ? (uint64_t)(60 + __builtin_ctzll(roll() | 1 << 20)) : roll());
    case 4: return (unsigned char)(roll() % 3);
    case 5: return (unsigned char)__builtin_ctzll(roll() | (uint64_t)1 << 63);
    case 6: return (unsigned char)i;
    default: return (unsigned char)(roll() % 200 * (roll() % 2));
    }
}

int main(int argc, char **argv) {
    const long pieces = argc > 1 ? atol(argv[1]) : 100;
    long refused = 0;
    for (long it = 0; it < pieces; it++) {
        const int kind = (int)(roll() % 8);
        const hk_codec c = {.nbytes = roll() % 2 ? 4 : 2};
        const size_t n = (roll() % 6 == 0 ? HK_PIECE / c.nbytes : roll() % 3000 + 1) * c.nbytes;
        unsigned char *raw = malloc(n), *wire = malloc(65528), *back = malloc(n);
        size_t taken;
        for (size_t i = 0; i < n; i++) raw[i] = byte_of(kind, i, c.nbytes);
        const size_t used = pack_lossless(&c, wire, 65528, raw, n, &taken);
        unsigned char *exact = malloc(used);
        memcpy(exact, wire, used);
        if (taken != n || used > n + n / 100 + 8 || unpack_lossless(&c, back, exact, used) != (long)n || memcmp(back, raw, n)) {
            printf("piece %ld of kind %d, %zu bytes: %zu taken, %zu packed\n", it, kind, n, taken, used);
            return 1;
        }
        for (int h = 0; h < 3; h++) {
            const size_t cut = roll() % 3 ? used : roll() % used;
            unsigned char *bad = malloc(cut + 1), *room = malloc(HK_PIECE);
            memcpy(bad, wire, cut);
            for (uint64_t changes = roll() % 4 + 1; cut && changes; changes--)
                bad[roll() % (h && cut > 60 ? 60 : cut)] = (unsigned char)roll();
            bad = realloc(bad, cut ? cut : 1);
            refused += unpack_lossless(&c, room, bad, cut) < 0;
            free(bad), free(room);
        }
        free(raw), free(wire), free(back), free(exact);
    }
    printf("%ld pieces, %s\n", pieces, refused > pieces ? "and most that were changed are refused" : "but few are refused");
    return 0;
}
