/* Blocks of accumulators of every kind are packed, unpacked, added and rounded; then bytes of their heads are changed, and what
 * is not refused is unpacked, added and rounded too: no byte outside is touched.
 * argv: how many pieces.  Run under AddressSanitizer and UBSan by test_kernels.py. */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/dtypes.h"
#include "kernels/factor.h"
#include "kernels/cpu/codec.h"
#include "kernels/cpu/fold.h"
#define AT(name) name /* one level, compiled alone: all of reduce.h takes a minute */
static void widen_f16(void *to, const void *from, size_t n, double by) {
    for (size_t i = 0; i < n; i++) put_f32((any_f32 *)to, i, (f32)by * get_f16((const any_f16 *)from, i));
}
static void widen_bf16(void *to, const void *from, size_t n, double by) {
    for (size_t i = 0; i < n; i++) put_f32((any_f32 *)to, i, (f32)by * get_bf16((const any_bf16 *)from, i));
}
#include "kernels/exact/sums.h"
#include "kernels/exact/heads.h"
#include "kernels/exact/accumulators.h"

static uint64_t state = 88172645463325252u;

static uint64_t roll(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static double drawn(int wide, int single) {
    const double x = (double)(int64_t)roll() * 0x1p-62;
    const int span = single ? 120 : 1000;
    if (wide == 2 && roll() % 50 == 0) return roll() % 2 ? INFINITY : NAN;
    return wide ? ldexp(x, (int)(roll() % (2 * (unsigned)span)) - span) : x;
}

int main(int argc, char **argv) {
    const long pieces = argc > 1 ? atol(argv[1]) : 100;
    long refused = 0, of_a_kind[HK_IN_TERMS + 1] = {0};
    for (long it = 0; it < pieces; it++) {
        const int single = (int)(roll() % 2), k = (int)(roll() % 4) + 1, wide = (int)(roll() % 3);
        const size_t width = single ? 4 : 8, rows = roll() % 13, count = roll() % 300 + 1;
        const size_t blocks = (count + HK_EXACT_BLOCK - 1) / HK_EXACT_BLOCK;
        const int words = single ? 5 : 34, room = 1 + 8 * words < 64 ? 64 : 1 + 8 * words;
        const hk_codec c = {.dtype = single ? HK_FLOAT32 : HK_FLOAT64, .words = words, .base = single ? -149 : -1074,
                            .rows = rows, .stride = count * width, .divisor = 1, .block = HK_EXACT_BLOCK,
                            .nbytes = sizeof(hk_exact_head) + HK_EXACT_BLOCK * (size_t)room};
        unsigned char *in[4], *out = malloc(blocks * c.nbytes), *x = malloc(rows * count * width), *y = malloc(count * width);
        for (int j = 0; j < k; j++) {
            in[j] = malloc(blocks * c.nbytes);
            for (size_t i = 0; i < rows * count; i++) {
                const double value = drawn(wide, single);
                if (single)
                    ((float *)x)[i] = (float)value;
                else
                    ((double *)x)[i] = value;
            }
            encode_exact(&c, in[j], x, count, 1, (hk_dice){0});
        }
        fold_exact(&c, out, (const void *const *)in, k, count, (hk_dice){0});
        decode_exact(&c, y, out, count, 1);
        size_t taken;
        unsigned char *wire = malloc(blocks * c.nbytes), *back = malloc(blocks * c.nbytes), *again = malloc(count * width);
        const size_t used = hk_pack_exact(&c, wire, blocks * c.nbytes, out, blocks * c.nbytes, &taken);
        for (size_t at = 0; at < blocks; at++) of_a_kind[hk_head_of(out + at * c.nbytes).kind]++;
        if (hk_count_exact(&c, wire, used) != (long)blocks) return printf("piece %ld: not what was packed\n", it), 1;
        hk_unpack_exact(&c, back, wire, blocks * c.nbytes);
        decode_exact(&c, again, back, count, 1);
        if (memcmp(y, again, count * width)) return printf("piece %ld: other sums\n", it), 1;
        for (int h = 0; h < 3; h++) {
            const size_t cut = roll() % 3 ? used : roll() % used;
            unsigned char *bad = malloc(cut + 1);
            memcpy(bad, wire, cut);
            for (uint64_t changes = roll() % 2 + 1; cut && changes; changes--)
                bad[roll() % (cut < 8 ? cut : 8)] = (unsigned char)(roll() % 70);
            bad = realloc(bad, cut ? cut : 1);
            const long found = hk_count_exact(&c, bad, cut);
            if (found == (long)blocks && hk_head_of(bad).count == (count < HK_EXACT_BLOCK ? count : HK_EXACT_BLOCK)) {
                hk_unpack_exact(&c, back, bad, blocks * c.nbytes);
                const void *two[2] = {back, in[0]};
                fold_exact(&c, out, two, 2, count, (hk_dice){0});
                decode_exact(&c, y, out, count, 1);
            } else
                refused++;
            free(bad);
        }
        for (int j = 0; j < k; j++) free(in[j]);
        free(out), free(x), free(y), free(wire), free(back), free(again);
    }
    for (int kind = HK_IN_FLOATS; kind <= HK_IN_TERMS; kind++)
        if (!of_a_kind[kind]) return printf("no block of kind %d\n", kind), 1;
    printf("%ld pieces, %s\n", pieces, refused > pieces ? "and most that were changed are refused" : "but few are refused");
}
