/* kept.h in every order: a sender, a receiver and a connection between them that may break at any byte, in either direction;
 * and a stream the other way, whose heads may say what has come, and are read at any time later.
 *
 * The laws: what the receiver has is what was sent, in its order, each byte once; the ring is no larger than its bound; and
 * from every state all that is sent arrives, if the connection does not break for ever, though no head be read.  The
 * caller's memory is read where it stays alone.  Each state is visited once. */
enum { HK_KEPT_FIRST = 2, HK_KEPT_MOST = 4, HK_TELL = 2, HK_TELL_SURE = 3, HK_NAMES = 2 };
#define HK_KEPT_MOST HK_KEPT_MOST
#include "transports/tcp/kept.h"

#include <stdio.h>

enum { ALL = 8, CUTS = 3, AT_ONCE = 3, MANY = 1 << 20, NEXT = 64 };

typedef struct world {
    uint64_t sent, given, acked, got, told; /* the two ends */
    uint64_t arrives, words;                /* on the way: the stream up to here; the count of a word, or 0 */
    uint64_t said, head;                    /* the latest count in a head; the one on the way, or 0 */
    struct { uint64_t from, to; } name[HK_NAMES];
    int names;
    int open, cuts, room;                   /* is there a connection? */
    char ring[HK_KEPT_MOST], held[ALL];
} world;

static world *all, found[NEXT];
static unsigned count, *table, nfound;

static void must(int true_, const char *what) {
    if (true_) return;
    printf("broken: %s\n", what);
    exit(1);
}

static char memory[ALL]; /* the caller's: of what is named alone, as all else may have changed */

static char byte(uint64_t i) { return (char)('a' + i); }

static hk_kept kept(const world *w) {
    hk_kept k = {w->room ? (char *)malloc((size_t)w->room) : NULL, (size_t)w->room, w->sent, w->given, w->acked, 0, {{0}}};
    if (w->room) memcpy(k.ring, w->ring, k.room);
    memset(memory, '!', sizeof memory);
    k.names = (uint32_t)w->names;
    for (int i = 0; i < w->names; i++) {
        k.name[i] = (hk_name){w->name[i].from, w->name[i].to, memory + w->name[i].from};
        for (uint64_t at = w->name[i].from; at < w->name[i].to; at++) memory[at] = byte(at);
    }
    return k;
}

static int named(const hk_kept *k, uint64_t at) {
    for (uint32_t i = 0; i < k->names; i++)
        if (k->name[i].from <= at && at < k->name[i].to) return 1;
    return 0;
}

/* What may happen next is this. */
static void then(world w, hk_kept *k) {
    if (k) {
        must(k->room <= HK_KEPT_MOST, "the ring is larger than its bound");
        must(k->sent - k->acked <= k->room, "the ring holds more than it has room for");
        must(k->acked <= w.got, "what has not arrived is forgotten");
        w.sent = k->sent, w.given = k->given, w.acked = k->acked, w.room = (int)k->room;
        memset(w.ring, 0, sizeof w.ring);
        memset(w.name, 0, sizeof w.name);
        for (uint64_t at = w.acked; at < w.sent; at++) {
            if (named(k, at)) continue;
            must(k->ring[at & (k->room - 1)] == byte(at), "other bytes are kept");
            w.ring[at & (k->room - 1)] = byte(at);
        }
        must(k->names <= HK_NAMES, "there are more names than places");
        w.names = (int)k->names;
        for (int i = 0; i < w.names; i++) {
            must(k->name[i].to > w.acked, "what the peer has is still named");
            must(k->name[i].at == memory + k->name[i].from, "a name is of another place");
            w.name[i].from = k->name[i].from, w.name[i].to = k->name[i].to;
        }
        free(k->ring);
    }
    found[nfound++] = w;
}

static void next(const world *from, int may_break) {
    world w = *from;
    hk_kept k;
    nfound = 0;
    if (w.open && w.words) { /* the receiver's word comes, or one that no receiver says */
        k = kept(&w);
        must(!hk_kept_has(&k, w.given + 1), "bytes that were never given count");
        must(hk_kept_has(&k, w.words), "a true word is refused");
        w.words = 0;
        then(w, &k);
    }
    w = *from;
    if (w.open && w.got < w.arrives) { /* a byte comes */
        w.held[w.got] = byte(w.got);
        w.got++;
        if (hk_tell_due(w.got, w.told, w.said)) {
            char word[HK_WORD];
            hk_word_write(word, w.got);
            must(hk_word_read(word, &w.words), "a word is not read");
            word[9] ^= 1;
            must(!hk_word_read(word, &w.told), "any bytes are a word");
            w.told = w.got;
        }
        then(w, NULL);
    }
    w = *from;
    if (!w.open) { /* a new connection, whose receiver says what it got; or says what cannot be */
        k = kept(&w);
        must(!hk_kept_again(&k, w.sent + 1), "bytes that were never sent count");
        must(w.acked == 0 || !hk_kept_again(&k, w.acked - 1), "bytes that are forgotten are promised");
        must(hk_kept_again(&k, w.got), "what the receiver got is refused");
        must(k.given == w.got, "it goes on elsewhere than where the receiver is");
        must(k.names == 0, "a new connection is given what may change meanwhile");
        w.open = 1, w.told = w.arrives = w.got;
        then(w, &k);
    }
    w = *from;
    if (w.open && w.given < w.sent) { /* some of what is kept is given again */
        const char *at;
        k = kept(&w);
        const size_t n = hk_kept_next(&k, &at);
        must(n > 0 && n <= w.sent - w.given, "not the rest is given again");
        for (size_t i = 0; i < n; i++) must(at[i] == byte(w.given + i), "other bytes are given again");
        k.given++, w.arrives++;
        then(w, &k);
    }
    w = *from;
    for (uint64_t n = AT_ONCE; w.open && w.given == w.sent && n > 0; n--) { /* the caller sends, and some is taken */
        if (w.sent + n > ALL) continue;
        char bytes[AT_ONCE];
        k = kept(from);
        for (uint64_t i = 0; i < n; i++) bytes[i] = byte(w.sent + i);
        const size_t fits = hk_kept_free(&k, n);
        must(fits <= n, "more fits than was asked for");
        if (fits == 0) {
            must(w.sent - w.acked >= HK_TELL, "a sender waits for a word that is not due");
            free(k.ring);
            continue;
        }
        w.arrives = from->arrives + fits;
        hk_kept_add(&k, bytes, fits);
        then(w, &k);
        k = kept(from);
        for (uint64_t i = 0; i < n; i++) memory[w.sent + i] = byte(w.sent + i);
        hk_kept_free(&k, n);
        hk_kept_name(&k, memory + w.sent, fits);
        then(w, &k);
    }
    w = *from;
    for (int i = 0; may_break && w.names && i <= w.names; i++) { /* its memory is to change: there, or anywhere */
        const char *const at = i < w.names ? memory + w.name[i].from : NULL;
        k = kept(&w);
        hk_kept_fill(&k, at, 1);
        must(at ? !named(&k, w.name[i].from) : k.names == 0, "what changes is still named");
        then(w, &k);
    }
    if (may_break && w.got > w.said) { /* a head says what has come; the one before may not have been read */
        w.head = w.said = w.got;
        then(w, NULL);
    }
    w = *from;
    if (may_break && w.head) { /* ... and is read; a sender does not count on it */
        k = kept(&w);
        must(hk_kept_has(&k, w.head), "a true head is refused");
        w.head = 0;
        then(w, &k);
    }
    w = *from;
    if (may_break && w.open && w.cuts < CUTS) { /* all that is on the way is lost */
        w.open = 0, w.words = 0, w.arrives = w.got, w.cuts++;
        then(w, NULL);
    }
}

static void add(const world *w) {
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < sizeof *w; i++) h = (h ^ ((const unsigned char *)w)[i]) * 1099511628211u;
    unsigned at = (unsigned)(h >> 20) & (2 * MANY - 1);
    for (; table[at]; at = (at + 1) & (2 * MANY - 1))
        if (memcmp(all + table[at] - 1, w, sizeof *w) == 0) return;
    must(count < MANY, "there are more states than were thought of");
    all[count] = *w;
    table[at] = ++count;
}

int main(void) {
    all = (world *)calloc(MANY, sizeof *all);
    table = (unsigned *)calloc(2 * MANY, sizeof *table);
    world first;
    memset(&first, 0, sizeof first);
    first.open = 1;
    add(&first);
    for (unsigned i = 0; i < count; i++) {
        next(all + i, 1);
        for (unsigned n = nfound, j = 0; j < n; j++) add(found + j);
        world w = all[i];
        for (int turns = 0; w.got < ALL; turns++) { /* if it breaks no more */
            must(turns < 100, "it does not end");
            next(&w, 0);
            must(nfound > 0, "nothing can happen any more");
            w = found[0];
        }
        for (uint64_t at = 0; at < ALL; at++) must(w.held[at] == byte(at), "other bytes arrive");
    }
    printf("ok %u\n", count);
    return 0;
}
