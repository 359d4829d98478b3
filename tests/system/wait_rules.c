/* What waits learn: who meets slow yields in one wait after the other sleeps without them for a while, and only who may. */
#include <stdio.h>

#include "system/wait.h"

static int wrong(const char *rule, int holds) {
    if (!holds) printf("%s\n", rule);
    return !holds;
}

/* No yield of this program itself is slow. */
static hk_ladder ladder(uint32_t tires) {
    hk_ladder l = {.spins = 64, .spins_now = 64, .yield_ns = 2000000, .slow_ns = 1000000000000, .tires = tires, .home = -1};
    return l;
}

/* A wait that ends after one look, or after a yield that was slow. */
static void waits(hk_ladder *l, int many, uint32_t slow) {
    for (int i = 0; i < many; i++) {
        hk_wait w = {.polls = 1, .slow = slow, .shared = slow};
        hk_wait_reset(&w, l, NULL);
    }
}

/* Does a wait that has come to the second rung leave it out?  As if no time had passed. */
static int leaves_out(hk_ladder *l) {
    hk_wait w = {.polls = l->spins_now};
    if (l->sleeps > 1) l->sleeps = UINT64_MAX;
    hk_wait_step(&w, l, NULL, NULL, 0);
    return (int)w.tired;
}

int main(void) {
    int bad = 0;
    hk_ladder l = ladder(1);
    waits(&l, 1, 1);
    bad += wrong("one slow yield is none", !leaves_out(&l));
    waits(&l, 1, 1);
    bad += wrong("two near each other are", leaves_out(&l) && l.tired == HK_TIRED_NS && l.spins_now <= HK_SPINS_MIN);
    waits(&l, HK_SLOW_MOST, 0);
    bad += wrong("what is answered at once meanwhile teaches nothing", l.tired == HK_TIRED_NS && l.spins_now <= HK_SPINS_MIN);
    bad += wrong("... so it goes on", leaves_out(&l));
    for (int i = 0; i < 20; i++) waits(&l, 1, 1);
    bad += wrong("the time is bounded", l.tired == HK_TIRED_MOST_NS);
    l.sleeps = 1; /* it is over */
    bad += wrong("then yields are tried", !leaves_out(&l) && l.sleeps == 0);
    waits(&l, HK_SLOW_MOST, 0);
    bad += wrong("quick ones bring back all", l.tired == 0 && l.vain == 0);
    waits(&l, 8, 0);
    bad += wrong("... and the spins", l.spins_now == l.spins);

    l = ladder(1);
    for (int i = 0; i < 10; i++) {
        waits(&l, 1, 1);
        waits(&l, HK_SLOW, 0);
    }
    bad += wrong("a stranger's slice now and then is none", !leaves_out(&l));

    l = ladder(0);
    waits(&l, 20, 1);
    bad += wrong("who may not, does not", !leaves_out(&l) && l.tired == 0);

    hk_ladder from = ladder(1), to = ladder(1);
    waits(&from, 2, 1);
    hk_ladder_learn(&to, &from);
    bad += wrong("what was learned is handed on whole", to.spins_now == HK_SPINS_MIN && to.vain == from.vain
                 && to.tired == HK_TIRED_NS && to.sleeps == from.sleeps);
    return bad;
}
