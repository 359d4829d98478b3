/* test_fill.py: how slots are filled (transports/shm/fill.h).  Ends with 0, or says what was wrong. */
#include <stdio.h>
#include <stdlib.h>

#include "transports/shm/fill.h"

#define WANT(truth) \
    if (!(truth)) return fprintf(stderr, "line %d: %s\n", __LINE__, #truth), 1

enum { SLOTS = 32, BYTES = 65536 };
static char circle[SLOTS * BYTES];

/* A machine: what a slot costs depends on how it is filled now, and how it was filled the last time. */
typedef struct machine {
    uint32_t cached, past; /* cycles for 1 KiB, of a slot that was filled likewise the last time */
    uint32_t cold, sudden; /* of one that was not */
    uint32_t at;
    uint8_t last[SLOTS];
} machine;

/* So many slots.  How many were filled past the caches? */
static int fill(hk_fill *f, machine *m, int slots) {
    int count = 0;
    for (int i = 0; i < slots; i++, m->at = (m->at + 1) % SLOTS) {
        const char *slot = circle + (size_t)m->at * BYTES;
        const hk_fill_how how = hk_fill_next(f, slot, BYTES);
        const uint32_t through = m->last[m->at] ? m->cold : m->cached, past = m->last[m->at] ? m->past : m->sudden;
        const uint32_t cost = how.past ? past : through;
        if (how.counts) hk_fill_learn(f, slot, how.past, cost);
        m->last[m->at] = (uint8_t)how.past;
        count += (int)how.past;
    }
    return count;
}

static int learns(void) {
    enum { LONG = 8 * (HK_FILL_TRY + SLOTS), MOST_TRIES = 2 * 8 };
    hk_fill f = {0};
    machine m = {.cached = 31, .past = 55, .cold = 31, .sudden = 55};
    /* Near, as measured: 31 and 55 ns for 1 KiB. */
    WANT(fill(&f, &m, LONG) <= MOST_TRIES);
    /* The cores move apart: seen at the next try, or earlier. */
    m.cached = m.cold = 160, m.past = m.sudden = 33;
    fill(&f, &m, HK_FILL_TRY + 2 * SLOTS);
    WANT(fill(&f, &m, LONG) >= LONG - MOST_TRIES);
    /* They move together again: with the next try. */
    m.cached = m.cold = 31, m.past = m.sudden = 55;
    fill(&f, &m, HK_FILL_TRY + 2 * SLOTS);
    WANT(fill(&f, &m, LONG) <= MOST_TRIES);
    /* One interruption changes nothing, whichever way it hits. */
    hk_fill_learn(&f, NULL, 0, 1000000);
    WANT(!f.past);
    hk_fill_learn(&f, NULL, 1, 1000000);
    WANT(!f.past);
    hk_fill_learn(&f, NULL, 0, 1000000);
    WANT(!f.past);
    m.cached = m.cold = 160, m.past = m.sudden = 33;
    fill(&f, &m, LONG);
    WANT(f.past);
    hk_fill_learn(&f, NULL, 1, 1000000);
    fill(&f, &m, 4);
    WANT(f.past);
    /* Bytes that come from memory cost much both ways: the caches stay, as the reader has them to thank. */
    m.cached = m.cold = 31, m.past = m.sudden = 55;
    fill(&f, &m, LONG);
    m.cached = m.cold = 85, m.past = m.sudden = 80;
    WANT(fill(&f, &m, LONG) <= MOST_TRIES);
    /* Far, while the other rank fills slots, too: past the caches takes longer then, and is faster all the same. */
    m.cached = m.cold = 600, m.past = m.sudden = 300;
    fill(&f, &m, HK_FILL_TRY + 2 * SLOTS);
    WANT(fill(&f, &m, LONG) >= LONG - MOST_TRIES);
    return 0;
}

/* Near, as measured: once filled past the caches, a slot costs ten times as much through them, and only then. */
static int finds_back(void) {
    hk_fill f = {0};
    machine m = {.cached = 160, .past = 33, .cold = 1030, .sudden = 33};
    fill(&f, &m, 4 * HK_FILL_TRY);
    WANT(f.past);
    m.cached = 70, m.past = 95, m.sudden = 20;
    fill(&f, &m, HK_FILL_TRY + 2 * SLOTS);
    WANT(!f.past);
    WANT(fill(&f, &m, 40 * HK_FILL_TRY) <= 2 * 40);
    WANT(!f.past);
    return 0;
}

/* The place that a try waits for may be in no circle any more. */
static int gives_up(void) {
    for (uint32_t phase = HK_FILL_TRIES; phase <= HK_FILL_SETTLES; phase++) {
        hk_fill f = {0};
        machine m = {.cached = 31, .past = 55, .cold = 31, .sudden = 55};
        hk_fill_begin(&f, phase, (const char *)&f);
        fill(&f, &m, HK_FILL_LOST);
        WANT(f.phase == phase);
        fill(&f, &m, 1);
        WANT(f.phase == HK_FILL_USUAL);
        fill(&f, &m, HK_FILL_TRY + SLOTS);
        WANT(f.cost[0] == 31 && f.cost[1] == 55);
    }
    return 0;
}

static int copies(void) {
    enum { MOST = 3 * HK_FILL_TIMED };
    char *slot = aligned_alloc(128, MOST + 128), *from = malloc(MOST + 64), *keep = malloc(MOST + 128);
    for (int i = 0; i < MOST + 64; i++) from[i] = (char)(i * 7 + i / 251);
    for (int past = 0; past < 2; past++)
        for (size_t len = HK_FILL_TIMED - 3; len < MOST; len += 1021)
            for (int shift = 0; shift < 19; shift += 3) {
                hk_fill f = {.past = (uint32_t)past, .cost = {past ? 300 : 100, 100}};
                memset(slot, 0, MOST + 128);
                memset(keep, 0, MOST + 128);
                hk_fill_slot(&f, slot, shift % 2 ? keep + shift : NULL, from + shift, len, 1);
                WANT(memcmp(slot, from + shift, len) == 0);
                for (int i = 0; i < 128; i++) WANT(slot[len + i] == 0);
                for (size_t i = 0; i < len + 64; i++)
                    WANT(keep[i] == (shift % 2 && i >= (size_t)shift && i < shift + len ? from[i] : 0));
#ifdef __SSE2__
                WANT((f.turn > 0 || f.phase == HK_FILL_SETTLES) == (len >= HK_FILL_TIMED));
#endif
                const hk_fill before = f;
                hk_fill_slot(&f, slot, NULL, from, len, 0); /* its pages are not there yet: nothing is learnt */
                WANT(memcmp(&f, &before, sizeof f) == 0);
            }
    free(slot);
    free(from);
    free(keep);
    return 0;
}

int main(void) { return learns() || finds_back() || gives_up() || copies(); }
