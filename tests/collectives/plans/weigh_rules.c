/* test_weigh.py: which way messages go (collectives/plans/weigh.h).  Ends with 0, or says what was wrong. */
#include <stdio.h>

#include "collectives/plans/weigh.h"

#define WANT(truth) \
    if (!(truth)) return fprintf(stderr, "line %d: %s\n", __LINE__, #truth), 1

enum { RANKS = 3 };

/* A machine: what a call takes by slots, by reading, by writing, and by slots whose lines are far away; and ranks that
 * were late. */
typedef struct machine {
    uint64_t slots, reads, writes, cold;
    uint64_t round; /* calls by slots since a message was read */
    uint64_t dice, noise; /* by how much a rank's clock may differ */
    int blind, alike; /* does one rank come late to each call, and see its end alone?  Do all go the same way? */
    hk_weigh w[RANKS];
} machine;

static machine start(uint32_t warm, uint64_t slots, uint64_t reads, uint64_t cold) {
    machine m = {.slots = slots, .reads = reads, .writes = 9999, .cold = cold};
    for (int i = 0; i < RANKS; i++) m.w[i].warm = warm, m.w[i].count = 2;
    return m;
}

/* Calls from the end of a try to the end of the next one, when they are furthest apart. */
static uint32_t period(const machine *m) { return HK_WEIGH_APART * hk_weigh_length(&m->w[0]) + 1; }

/* So many calls.  How many messages were read, all ranks together?  -1: in a try ranks went different ways. */
static int run(machine *m, uint32_t calls) {
    int count = 0;
    for (uint32_t i = 0; i < calls; i++) {
        int reads[RANKS], timed[RANKS], all = 0;
        uint32_t told[RANKS];
        for (int r = 0; r < RANKS; r++) all += (reads[r] = (int)hk_weigh_next(&m->w[r], &timed[r])) > 0;
        for (int r = 0; r < RANKS; r++) told[r] = m->w[r].took;
        count += all;
        const uint64_t slots = m->round < m->w[0].warm ? m->cold : m->slots, late = i % 7 == 0 ? 5000 : 0;
        m->round = all ? 0 : m->round + 1;
        for (int r = 0; r < RANKS; r++) {
            if (timed[r] && (all % RANKS || reads[r] != reads[0])) return -1;
            m->dice = m->dice * 6364136223846793005u + 1442695040888963407u;
            const uint64_t off = m->noise ? (m->dice >> 33) % m->noise : 0;
            const uint64_t ns[] = {slots, m->reads, m->writes};
            for (int other = 0; told[r] && other < RANKS; other++) hk_weigh_hears(&m->w[r], told[other]);
            const uint64_t here = (int)(i % RANKS) == r && m->blind ? 1 : ns[reads[r]] + late + off;
            hk_weigh_done(&m->w[r], told[r] != 0, (uint32_t)reads[r], timed[r] ? here : 0);
        }
        for (int r = 1; r < RANKS && m->alike; r++)
            if (m->w[r].best != m->w[0].best) return -1;
    }
    return count;
}

static int holds(uint32_t warm) {
    machine m = start(warm, 1000, 1600, 4000);
    m.noise = 30;
    const int tries = RANKS * (HK_WEIGH_FIRST + HK_WEIGH_TIMED);
    m.alike = 1;
    const int slots = RANKS * (int)hk_weigh_first_way(&m.w[0]), calls = RANKS * (int)period(&m), tries_of_change = 6;
    /* Near cores: nothing is read but in the tries, which come soon at first and then seldom. */
    WANT(run(&m, period(&m)) <= tries_of_change * tries);
    run(&m, period(&m));
    const int usual = run(&m, 8 * period(&m));
    WANT(usual == 8 * tries);
    /* They move apart: the next two tries tell. */
    m.slots = 2000;
    WANT(run(&m, 3 * period(&m)) >= calls - tries_of_change * slots);
    run(&m, period(&m));
    WANT(run(&m, 8 * period(&m)) == 8 * (calls - slots));
    /* They move together again: the next one does, as slots were never so fast. */
    m.slots = 1000;
    WANT(run(&m, 2 * period(&m)) <= calls + tries_of_change * tries);
    run(&m, period(&m));
    WANT(run(&m, 8 * period(&m)) == 8 * tries);
    /* What takes about the same changes nothing, from either side. */
    m.slots = 1650;
    WANT(run(&m, 2 * period(&m)) == 2 * tries);
    for (int r = 0; r < RANKS; r++) m.w[r].best = 1;
    m.slots = 1570;
    WANT(run(&m, 2 * period(&m)) == 2 * (calls - slots));
    return 0;
}

/* Ranks whose clocks differ, where both ways take about the same, try in step and decide alike: run() says so. */
static int keeps_step(void) {
    for (uint64_t slots = 1000; slots < 2600; slots += 50) {
        machine m = start(2, slots, 1600, 4000);
        m.noise = 400;
        m.alike = m.blind = 1;
        WANT(run(&m, 40 * period(&m)) >= 0);
    }
    return 0;
}

/* Ranks that differ come together; calls that have not ended when the next one begins tell nothing. */
static int stands(void) {
    machine m = start(2, 1000, 1600, 4000);
    m.w[1].best = 1;
    WANT(run(&m, period(&m)) > 0);
    for (int r = 0; r < RANKS; r++) WANT(!m.w[r].best);
    hk_weigh w = {.warm = 2, .count = 2};
    int timed, count = 0;
    for (uint32_t i = 0; i < 4 * period(&m); i++) {
        const uint32_t reads = hk_weigh_next(&w, &timed);
        const int told = w.took != 0, ended = !timed || count++ % (2 * HK_WEIGH_TIMED);
        if (ended) hk_weigh_done(&w, told, reads, timed ? reads ? 1000 : 2000 : 0);
        WANT(!w.best);
    }
    return 0;
}

/* A program's first calls are few: the first try has ended after so many. */
static int begins_early(void) {
    machine m = start(2, 2000, 1000, 4000);
    run(&m, HK_WEIGH_SOON * hk_weigh_length(&m.w[0]) + 1);
    WANT(run(&m, 5) == 5 * RANKS);
    return 0;
}

/* Of three ways the fastest is taken, and another one when that is no longer so. */
static int takes_the_best_of_three(void) {
    machine m = start(2, 2000, 1500, 4000);
    m.writes = 1000;
    for (int r = 0; r < RANKS; r++) m.w[r].count = 3;
    run(&m, 2 * period(&m));
    for (int r = 0; r < RANKS; r++) WANT(m.w[r].best == 2);
    m.writes = 3000;
    run(&m, 3 * period(&m));
    for (int r = 0; r < RANKS; r++) WANT(m.w[r].best == 1);
    return 0;
}

/* Something else runs while one try lasts: a way that was slow in it alone is not given up, nor taken for long at the
 * beginning. */
static int sits_out_an_interruption(void) {
    for (uint32_t first = 0; first < 2; first++) {
        machine m = start(2, 2000, 1000, 4000);
        if (!first) run(&m, 8 * period(&m)); /* ends behind a try */
        m.reads = 9000;
        run(&m, first ? HK_WEIGH_SOON * hk_weigh_length(&m.w[0]) + 1 : period(&m));
        m.reads = 1000;
        run(&m, first ? 2 * HK_WEIGH_SOON * hk_weigh_length(&m.w[0]) + 2 : 1);
        for (int r = 0; r < RANKS; r++) WANT(m.w[r].best == 1);
    }
    return 0;
}

int main(void) {
    return takes_the_best_of_three() || holds(1) || holds(2) || holds(16) || keeps_step() || stands() || begins_early()
        || sits_out_an_interruption();
}
