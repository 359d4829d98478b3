/* Who has computed does not yield, for so long; what waits learn; and what is computing. */
#include <stdio.h>

#include "collectives/waiting/computed.h"
#include "system/wait.h"

static int wrong(const char *rule, int holds) {
    if (!holds) printf("%s\n", rule);
    return !holds;
}

static hk_ladder ladder(void) {
    hk_ladder l = {.spins = 64, .spins_now = 64, .yield_ns = 2000000, .slow_ns = 1000000000000, .home = -1};
    return l;
}

/* Does a wait that comes to the second rung now leave it out? */
static int leaves_out(hk_ladder *l) {
    hk_wait w = {.polls = l->spins_now};
    hk_wait_step(&w, l, NULL, NULL, 0);
    return (int)w.behind;
}

static uint64_t until(uint64_t computed) {
    hk_ladder l = ladder();
    hk_wait_behind(&l, 1000, computed);
    return l.behind - 1000;
}

static void nap(uint64_t ns) {
    struct timespec t = {0, (long)ns};
    nanosleep(&t, NULL);
}

static void compute(uint64_t ns) {
    for (uint64_t used = hk_thread_time(); hk_thread_time() - used < ns;) {}
}

/* Is it `ns`, and not twice as much? */
static int about(uint64_t computed, uint64_t ns) { return computed >= ns && computed < 2 * ns; }

static int ladders(void) {
    hk_ladder l = ladder();
    int bad = wrong("a wait yields", !leaves_out(&l));
    hk_wait_behind(&l, hk_now(), 0);
    bad += wrong("... and who has not computed", !leaves_out(&l));
    hk_wait_behind(&l, hk_now(), 1000000);
    bad += wrong("who has computed does not", leaves_out(&l));
    hk_wait_behind(&l, hk_now(), 0);
    bad += wrong("... nor in the waits behind that one", leaves_out(&l));
    bad += wrong("for 32 times as long", until(1000000) == 32000000);
    bad += wrong("... but not for ever", until(1000000000000) == 640000000 && until(UINT64_MAX) == 640000000);
    nap(33000000);
    bad += wrong("then it yields again", !leaves_out(&l));

    hk_wait w = {.polls = l.spins_now}, slept = {.polls = l.spins_now, .since = 1, .behind = 1};
    bad += wrong("no sleep on the first rung", !hk_wait_sleeps(&w, &l));
    bad += wrong("who leaves yields out sleeps", hk_wait_sleeps(&slept, &l));
    slept.since = hk_now();
    bad += wrong("... after some polls", !hk_wait_sleeps(&slept, &l));

    slept.since = 1;
    l = ladder();
    hk_wait_step(&slept, &l, NULL, NULL, 0);
    bad += wrong("such a sleep brings a rank nearer to going home", l.shared == 1);

    hk_ladder from = ladder(), to = ladder();
    from.spins_now = 8;
    hk_wait_behind(&from, hk_now(), 1000000);
    hk_ladder_learn(&to, &from);
    bad += wrong("what was learned is handed on", to.spins_now == 8 && to.behind == from.behind);
    return bad;
}

static int computing(void) {
    compute(3000000);
    int bad = wrong("nobody knows before the first wait", hk_computed(hk_now(), 1) == 0);
    hk_wait_left(1);
    bad += wrong("less than half a millisecond is none", hk_computed(hk_now(), 2) == 0);
    nap(5000000);
    bad += wrong("nor are sleep and what another thread has the core for", hk_computed(hk_now(), 2) == 0);
    compute(3000000);
    bad += wrong("CPU time is", about(hk_computed(hk_now(), 2), 3000000));
    bad += wrong("... shared among the calls", about(hk_computed(hk_now(), 4), 1000000));
    bad += wrong("... of which many have not computed", hk_computed(hk_now(), 12) == 0);
    bad += wrong("a count that went back is one call", about(hk_computed(hk_now(), 0), 3000000));
    hk_left.used += 1000000000;
    bad += wrong("a child that was forked has not computed", hk_computed(hk_now(), 2) == 0);
    hk_wait_left(2);
    hk_left.used -= 1000000; /* as if it were read anew */
    uint64_t used = hk_left.used;
    hk_wait_left(3);
    bad += wrong("the clock is not read twice at once", hk_left.used == used && hk_left.begun == 2);
    return bad;
}

int main(void) { return ladders() + computing(); }
