/* test_fill.py: how slots are filled (transports/shm/fill.h).  Ends with 0, or says what was wrong. */
#include <stdio.h>
#include <stdlib.h>

#include "transports/shm/fill.h"

#define WANT(truth) \
    if (!(truth)) return printf("line %d: %s\n", __LINE__, #truth), 1

/* Slots of these costs, of which every HK_FILL_TRY-th is tried the other way.  How many were filled past the caches? */
static int fill(hk_fill *f, int slots, uint32_t cached, uint32_t past) {
    int count = 0;
    for (int i = 0; i < slots; i++) {
        const uint32_t way = ++f->turn % HK_FILL_TRY ? f->past : !f->past;
        hk_fill_learn(f, way, way ? past : cached);
        count += way;
    }
    return count;
}

static int learns(void) {
    hk_fill f = {0};
    /* Near, as measured: 31 and 55 ns for 1 KiB. */
    WANT(fill(&f, 4 * HK_FILL_TRY, 31, 55) == 4);
    /* The cores move apart: seen at the next try, or earlier. */
    fill(&f, HK_FILL_TRY, 160, 33);
    WANT(fill(&f, 40 * HK_FILL_TRY, 160, 33) == 40 * (HK_FILL_TRY - 1));
    /* They move together again: with the next try. */
    fill(&f, HK_FILL_TRY, 31, 55);
    WANT(fill(&f, 4 * HK_FILL_TRY, 31, 55) == 4);
    /* One interruption changes nothing, whichever way it hits. */
    hk_fill_learn(&f, 0, 1000000);
    WANT(!f.past);
    hk_fill_learn(&f, 1, 1000000);
    WANT(!f.past);
    hk_fill_learn(&f, 0, 1000000);
    WANT(!f.past);
    fill(&f, 4 * HK_FILL_TRY, 160, 33);
    WANT(f.past);
    hk_fill_learn(&f, 1, 1000000);
    fill(&f, 4, 160, 33);
    WANT(f.past);
    /* Bytes that come from memory cost much both ways: the caches stay, as the reader has them to thank. */
    fill(&f, 4 * HK_FILL_TRY, 31, 55);
    WANT(fill(&f, 4 * HK_FILL_TRY, 85, 80) == 4);
    return 0;
}

static int copies(void) {
    enum { MOST = 3 * HK_FILL_TIMED };
    char *slot = aligned_alloc(128, MOST + 128), *from = malloc(MOST + 64);
    for (int i = 0; i < MOST + 64; i++) from[i] = (char)(i * 7 + i / 251);
    for (int past = 0; past < 2; past++)
        for (size_t len = HK_FILL_TIMED - 3; len < MOST; len += 1021)
            for (int shift = 0; shift < 19; shift += 3) {
                hk_fill f = {.past = past, .cost = {past ? 300 : 100, 100}};
                memset(slot, 0, MOST + 128);
                hk_fill_slot(&f, slot, from + shift, len, 1);
                WANT(memcmp(slot, from + shift, len) == 0);
                for (int i = 0; i < 128; i++) WANT(slot[len + i] == 0);
#ifdef __SSE2__
                WANT(f.turn == (len >= HK_FILL_TIMED));
#endif
                hk_fill_slot(&f, slot, from, len, 0); /* its pages are not there yet: nothing is learnt */
                WANT(f.turn == (len >= HK_FILL_TIMED) || f.turn == 0);
            }
    free(slot);
    free(from);
    return 0;
}

int main(void) { return learns() || copies(); }
