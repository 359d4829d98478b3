/* Every kernel at every level this CPU has, at odd addresses and with `out` apart and in place, on exact allocations.
 * Run under AddressSanitizer and UBSan by test_sanitized.py; prints how many kernels it ran. */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cpu/elias.h"
#include "kernels/cpu/reduce.h"

static const int itemsizes[HK_DTYPE_COUNT] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 8, 16, 1, 1, 8, 16, 8, 16, 1};
static const int lengths[] = {0, 1, 15, 17, 31, 1100};
static const double factors[] = {0.5, 1.0 / 3, -1e300, 1e300, 0.0};
enum { INPUTS = 9 };

/* `bytes` random bytes, `offset` past what malloc gave and up to its very end. */
static unsigned char *fresh(size_t bytes, int offset) {
    unsigned char *room = malloc(bytes + offset);
    for (size_t i = 0; i < bytes + offset; i++)
        room[i] = (unsigned char)rand();
    return room + offset;
}

static void run_reduce(hk_reduce_fn function, size_t itemsize, size_t count, int k) {
    unsigned char *inputs[INPUTS];
    for (int j = 0; j < k; j++)
        inputs[j] = fresh(count * itemsize, (3 * j + 1) % 8);
    unsigned char *out = fresh(count * itemsize, 5);
    function(out, (const void *const *)inputs, k, count);
    int last = k - 1;
    function(inputs[last], (const void *const *)inputs, k, count);
    if (memcmp(out, inputs[last], count * itemsize) != 0) {
        printf("in place differs\n");
        exit(1);
    }
    free(out - 5);
    for (int j = 0; j < k; j++)
        free(inputs[j] - (3 * j + 1) % 8);
}

static void run_scale(hk_apply_fn function, size_t itemsize, size_t count) {
    for (size_t f = 0; f < sizeof factors / sizeof *factors; f++) {
        unsigned char *x = fresh(count * itemsize, 3), *out = fresh(count * itemsize, 1);
        function(out, x, count, factors[f]);
        function(x, x, count, factors[f]);
        free(x - 3);
        free(out - 1);
    }
}

static void run_convert(hk_apply_fn narrow, hk_apply_fn widen, size_t itemsize, size_t count) {
    unsigned char *x = fresh(count * sizeof(float), 3), *small = fresh(count * itemsize, 1);
    narrow(small, x, count, 0.5);
    widen(x, small, count, 2);
    free(x - 3);
    free(small - 1);
}

/* Of each kind one or two, with their parameters as kernels/codecs.py has them. */
static const struct parameters {
    enum hk_code kind;
    size_t block, nbytes;
    int bits, levels, norm, stochastic;
    float clip;
} codecs[] = {
    {HK_CODE_WHOLE, 256, 260, 8, 127, HK_NORM_MAX, 0, 0},
    {HK_CODE_WHOLE, 64, 4 + 64 * 5 / 8, 5, 15, HK_NORM_L2, 1, 0},
    {HK_CODE_WHOLE, 1024, 4 + 1024 * 2 / 8, 2, 1, HK_NORM_MAX, 1, 2.5f},
    {HK_CODE_FP8, 256, 260, 8, 0, 0, 0, 0},
    {HK_CODE_SIGN, 256, 36, 1, 0, 0, 0, 0},
    {HK_CODE_ONEBIT, 64, 16, 1, 0, 0, 0, 0},
    {HK_CODE_NATURAL, 128, 132, 8, 0, 0, 1, 0},
    {HK_CODE_F16, 128, 260, 16, 0, 0, 0, 0},
    {HK_CODE_BF16, 64, 128, 16, 0, 0, 0, 0},
};

/* On bytes that no encoder made, too: a peer may send anything. */
static void run_codec(const struct hk_level *level, const struct parameters *p, size_t count) {
    hk_codec c = level->codecs[p->kind];
    c.block = p->block, c.nbytes = p->nbytes, c.bits = p->bits, c.levels = p->levels;
    c.norm = p->norm, c.stochastic = p->stochastic, c.clip = p->clip;
    const size_t blocks = (count + c.block - 1) / c.block, nbytes = blocks * c.nbytes;
    const hk_dice dice = {7, 0};
    unsigned char *x = fresh(count * sizeof(float), 3), *wires[3];
    for (int j = 0; j < 3; j++)
        wires[j] = fresh(nbytes, 2 * j + 1);
    c.fold(&c, wires[0], (const void *const *)wires, 3, count, dice);
    c.decode(&c, x, wires[0], count, 0.5);
    c.encode(&c, wires[1], x, count, 2, dice);
    if (p->kind == HK_CODE_WHOLE) {
        unsigned char *bits = malloc(hk_elias_most(&c, blocks) + 1), *made = fresh(nbytes, 0);
        const size_t length = hk_elias_put(&c, bits, wires[1], blocks);
        if (hk_elias_get(&c, made, blocks, bits, length) < 0 || memcmp(made, wires[1], nbytes) != 0) {
            printf("Elias' codes come back otherwise\n");
            exit(1);
        }
        for (int turn = 0; turn < 100; turn++) {
            unsigned char *any = fresh(turn, 0);
            (void)hk_elias_get(&c, made, blocks, any, turn);
            free(any);
        }
        free(bits);
        free(made);
    }
    free(x - 3);
    for (int j = 0; j < 3; j++)
        free(wires[j] - (2 * j + 1));
}

int main(void) {
    static const int ks[] = {1, 2, 3, 4, 5, 8, 9};
    int ran = 0;
    for (int l = 0; l < hk_level_count(); l++) {
        for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++)
            for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++)
                run_codec(&hk_levels[l], &codecs[c], lengths[n]);
        for (int d = 0; d < HK_DTYPE_COUNT; d++) {
            for (int op = 0; op < HK_OP_COUNT; op++) {
                hk_reduce_fn function = hk_find_reduce(&hk_levels[l], d, op);
                for (size_t k = 0; function && k < sizeof ks / sizeof *ks; k++)
                    for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++)
                        run_reduce(function, itemsizes[d], lengths[n], ks[k]);
                ran += function != NULL;
            }
            hk_apply_fn scale = hk_find_apply(&hk_levels[l], d, d);
            for (size_t n = 0; scale && n < sizeof lengths / sizeof *lengths; n++)
                run_scale(scale, itemsizes[d], lengths[n]);
            ran += scale != NULL;
            hk_apply_fn narrow = hk_find_apply(&hk_levels[l], HK_FLOAT32, d), widen = hk_find_apply(&hk_levels[l], d, HK_FLOAT32);
            for (size_t n = 0; d != HK_FLOAT32 && narrow && n < sizeof lengths / sizeof *lengths; n++)
                run_convert(narrow, widen, itemsizes[d], lengths[n]);
        }
    }
    printf("%d kernels at %d levels\n", ran, hk_level_count());
    return 0;
}
