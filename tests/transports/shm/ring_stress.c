/* The shared-memory protocol between threads, for ThreadSanitizer and AddressSanitizer.
 *
 *   ring_stress pair START COUNT       one producer, one consumer; packet numbers begin at START (wrap-around)
 *   ring_stress multicast START COUNT  one producer, three consumers of different pace
 *   ring_stress marks 0 0              what was released long ago stays released, however far the counter went
 *   ring_stress hostile SEED COUNT     lines full of random bytes; the window is exactly as big as said
 *   ring_stress scribble SEED COUNT    a peer that changes the lines while they are read
 *   ring_stress foreign SEED COUNT     another process does both, and more, in a window that grows, beyond whose end
 *                                      there are addresses and no memory
 *
 * Ends with 0 and "ok", 1 and what was wrong, or 2 if nothing moved for HK_STUCK_NS.  All jobs share one window's making
 * and filling, which is why this is one file. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { READERS = 3, MESSAGE_MAX = 280000, ELEMENT = 24, REGION = MESSAGE_MAX + 64, BURST = 150 };

/* Memory of the producer that the system shows to nobody else, but for its first bytes. */
static char *hidden, *hidden_end;
static size_t shown;

static size_t seen_of(const struct iovec *there) {
    const char *at = there->iov_base, *from = hidden + __atomic_load_n(&shown, __ATOMIC_RELAXED);
    if (at >= hidden_end || at + there->iov_len <= from || hidden == NULL) return there->iov_len;
    return at < from ? (size_t)(from - at) : 0;
}

/* As the system does: what lies before the first byte that it does not show, or EFAULT. */
static ssize_t read_what_is_shown(pid_t pid, const struct iovec *here, unsigned long nhere, const struct iovec *there,
                                  unsigned long nthere, unsigned long flags) {
    struct iovec seen[2];
    unsigned long n = 0;
    for (; n < nthere; n++) {
        seen[n] = (struct iovec){there[n].iov_base, seen_of(&there[n])};
        if (seen[n].iov_len == there[n].iov_len) continue;
        n += seen[n].iov_len != 0;
        break;
    }
    errno = EFAULT;
    return n ? process_vm_readv(pid, here, nhere, seen, n, flags) : -1;
}
#define process_vm_readv read_what_is_shown

/* Memory of the consumers, MESSAGE_MAX each, that the system lets nobody else write; NULL: it does. */
static char *locked[READERS];

static ssize_t write_what_is_open(pid_t pid, const struct iovec *here, unsigned long nhere, const struct iovec *there,
                                  unsigned long nthere, unsigned long flags) {
    for (int i = 0; i < READERS; i++) {
        const char *begin = __atomic_load_n(&locked[i], __ATOMIC_RELAXED), *at = there->iov_base;
        if (begin == NULL || at < begin || at >= begin + MESSAGE_MAX) continue;
        errno = EFAULT;
        return -1;
    }
    return process_vm_writev(pid, here, nhere, there, nthere, flags);
}
#define process_vm_writev write_what_is_open

#include "transports/shm/receive.h"
#include "transports/shm/send.h"

#ifndef HK_STUCK_NS
#define HK_STUCK_NS 8000000000ull
#endif

static _Thread_local hk_ladder LADDER = {.spins = 200, .yield_ns = 100000, .slow_ns = 50000, .home = -1, .spins_now = 200};

typedef struct rng {
    uint64_t state;
} rng;

static uint64_t draw(rng *r) {
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = r->state ^ (r->state >> 29);
    x *= 0x9e3779b97f4a7c15u;
    return x ^ (x >> 32);
}

static void die(int code, const char *what) {
    fprintf(stderr, "ring_stress: %s\n", what);
    fflush(stderr);
    _exit(code);
}

/* --- the job: both sides draw the same messages from the same seed */

typedef struct message {
    hk_call call;
    size_t length;
    int in_window, to; /* to: a reader, or READERS for all of them */
} message;

/* Message i.  Every other BURST is of short ones only, so that lines run out and not slots. */
static message next_message(rng *r, uint64_t i, int multicast) {
    static const size_t LENGTHS[] = {0, 1, 8, 47, 48, 49, 1000, 3000, HK_BY_REF_MIN, HK_SLOT_BYTES, HK_SLOT_BYTES + 1, MESSAGE_MAX};
    message m = {0};
    m.call.tag = draw(r);
    uint64_t kind = draw(r);
    m.length = LENGTHS[i / BURST % 2 ? kind % 5 : kind % 4 ? kind / 4 % 6 : kind / 4 % 12];
    m.in_window = draw(r) % 2 && m.length >= HK_BY_REF_MIN;
    m.call.traffic = (int[]){HK_ONE_WAY, HK_MOVED, HK_READ, HK_WRITTEN, HK_BOTH}[draw(r) % 5];
    m.to = multicast && draw(r) % 3 ? READERS : multicast ? (int)(draw(r) % READERS) : 0;
    return m;
}

static unsigned char letter(uint64_t tag, size_t i) { return (unsigned char)(tag + i * 131 + (i >> 8)); }

typedef struct place {
    char *window;
    size_t window_bytes;
    char *region; /* of the producer's window: messages that are named, not copied */
    char *untaken; /* ... where the next slots are */
    hk_shared_slots shared;
    hk_producer producer[READERS];
    hk_consumer consumer[READERS];
    uint32_t *producer_bell, *consumer_bell[READERS];
    uint64_t start, count;
    int readers;
} place;

static const hk_call CALL = {.tag = 7};
static const int PLAIN = -1; /* the descriptor of memory that has none */

enum { CIRCLE = 2 * HK_SLOT_BYTES, GROWN = 2 * CIRCLE, FIRST_SHARED = HK_SMALL_SLOTS + 2, SHARED = FIRST_SHARED + 2 };
#define ALL_SLOTS \
    (READERS * (HK_SLOTS_BYTES(CIRCLE) + HK_SLOTS_BYTES(GROWN)) + (size_t)(FIRST_SHARED + SHARED) * HK_SLOT_BYTES)

static size_t window_size(void) { return (HK_RINGS_BYTES(READERS) + ALL_SLOTS + REGION + 4095) / 4096 * 4096; }

static char *from_window(void *taker, size_t nbytes, const char **why) {
    (void)why;
    place *w = taker;
    char *at = w->untaken;
    if ((w->untaken += nbytes) > w->region) die(1, "slots were taken twice");
    return at;
}

/* In this memory, which is zero, of window_size(). */
static place *build_in(char *window, uint32_t start, uint64_t count, int readers) {
    place *w = calloc(1, sizeof *w);
    w->start = start, w->count = count, w->readers = readers;
    w->window = window, w->window_bytes = window_size();
    uint32_t *bells = calloc(4 * (READERS + 1), sizeof *bells);
    w->producer_bell = bells;
    w->untaken = w->window + HK_RINGS_BYTES(READERS);
    w->region = w->untaken + ALL_SLOTS;
    w->shared.count = FIRST_SHARED, w->shared.most = SHARED;
    for (int i = 0; i < HK_SHARED_SLOTS; i++) {
        w->shared.reader[i] = calloc(READERS, sizeof(hk_producer *));
        w->shared.until[i] = calloc(READERS, sizeof(uint32_t));
    }
    for (int i = 0; i < READERS; i++) {
        hk_producer *p = &w->producer[i];
        hk_consumer *c = &w->consumer[i];
        w->consumer_bell[i] = bells + 4 * (i + 1);
        p->base.ops = &hk_producer_ops, c->base.ops = &hk_consumer_ops;
        p->window = w->window, p->window_bytes = w->window_bytes;
        p->ring = c->ring = (hk_ring *)w->window + i;
        p->shared = &w->shared, p->take = from_window, p->taker = w, p->slots_bytes = CIRCLE, p->slots_most = GROWN;
        p->peer_bell = w->consumer_bell[i], c->peer_bell = w->producer_bell;
        c->window = w->window, c->window_bytes = c->window_reserved = w->window_bytes, c->window_fd = &PLAIN;
        p->far_moved = HK_BY_REF_MIN, p->far_reduced = start % 3 ? HK_BY_REF_MIN : HK_NEVER;
        p->far = start % 2 == 0, p->self = c->pid = getpid(), p->back = c;
        p->reader = start % 2 == 0 ? getpid() : HK_NO_MEMORY;
        p->next = p->released = c->next = p->ring->released = start;
        for (uint32_t k = 0; k < HK_LINES; k++) /* as START packets would have left them */
            p->ring->line[(start - 1 - k) % HK_LINES].seq = start - k;
    }
    return w;
}

static place *build(uint32_t start, uint64_t count, int readers) {
    char *window = aligned_alloc(4096, window_size());
    memset(window, 0, window_size());
    return build_in(window, start, count, readers);
}

/* --- waiting, as the engine does it */

static void pause_or_die(hk_wait *wait, uint32_t *bell) {
    if (hk_wait_step(wait, &LADDER, bell, NULL, 0) > HK_STUCK_NS) die(2, "stuck");
}

/* `cut`: 1 or 2, in pieces, more than there are lines; with 1 every other one takes a slot. */
static void send_one(place *w, const message *m, char *source, int cut) {
    char *src = m->in_window ? w->region : source;
    hk_channel *all[READERS];
    const int several = m->to == READERS;
    for (int i = 0; i < READERS; i++) all[i] = &w->producer[several ? i : m->to].base;
    for (size_t i = 0; i < m->length; i++) src[i] = (char)letter(m->call.tag, i);
    hk_wait wait = {0};
    size_t done = 0;
    for (size_t k = 0;; k++) {
        size_t len = m->length - done;
        if (cut && len > 4096) len = cut == 1 && k % 2 ? 16 : 4096;
        long n = several ? hk_ring_multicast(all, READERS, &m->call, m->length, done, src + done, len)
                         : hk_ring_send(all[0], &m->call, m->length, done, src + done, len);
        if (n == HK_AGAIN) {
            k--;
            pause_or_die(&wait, w->producer_bell);
            continue;
        }
        done += (size_t)n;
        hk_wait_reset(&wait, &LADDER, w->producer_bell);
        if (done == m->length) break;
    }
    for (int i = 0; i < (several ? READERS : 1); i++)
        while (!hk_ring_settled(all[i], &m->call)) pause_or_die(&wait, w->producer_bell);
    hk_wait_reset(&wait, &LADDER, w->producer_bell);
    memset(src, 0x55, m->length); /* the caller's memory is his again */
}

static void *produce(void *arg) {
    place *w = arg;
    rng r = {w->start}, luck = {~w->start};
    char *source = malloc(MESSAGE_MAX);
    hidden = aligned_alloc(4096, MESSAGE_MAX / 4096 * 4096 + 4096);
    hidden_end = hidden + MESSAGE_MAX;
    for (uint64_t i = 0; i < w->count; i++) {
        message m = next_message(&r, i, w->readers > 1);
        const uint64_t kind = draw(&luck) % 16;
        __atomic_store_n(&shown, kind / 4 * 20480, __ATOMIC_RELAXED);
        for (int k = 0; k < w->readers; k++) /* as if nothing had been found out, mostly */
            if (kind % 4) w->producer[k].tries = 0;
        send_one(w, &m, kind % 4 ? hidden : source, (int)(draw(&luck) % 3));
    }
    free(source);
    free(hidden);
    return NULL;
}

/* By peek and consume. */
static long look(hk_consumer *c, const message *m, size_t done, rng *pace) {
    hk_view v;
    int rc = hk_ring_peek(&c->base, &CALL, &v, ELEMENT);
    if (rc != 1) return rc;
    if (v.avail < ELEMENT && c->packet - c->taken >= ELEMENT) die(1, "less than an element is shown");
    if (v.tag != m->call.tag || v.length != m->length || done + v.avail > m->length)
        die(1, "not the message that was sent");
    size_t n = v.avail > 16 && draw(pace) % 2 ? v.avail / 2 : v.avail;
    if (n >= ELEMENT && n < c->packet - c->taken) n -= n % ELEMENT;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)v.data[i] != letter(m->call.tag, done + i)) die(1, "wrong data");
    hk_ring_consume(&c->base, &CALL, n, done + n == m->length);
    return (long)n;
}

/* Into place. */
static long take(hk_consumer *c, const message *m, size_t done, rng *pace, int reader) {
    static _Thread_local char place[MESSAGE_MAX];
    if (done == 0 && c->data == NULL) __atomic_store_n(&locked[reader], draw(pace) % 2 ? place : NULL, __ATOMIC_RELAXED);
    hk_view v;
    int rc = done && draw(pace) % 2 ? 1 : hk_ring_peek(&c->base, &CALL, &v, done ? 1 : 0);
    if (rc != 1) return rc;
    if (done == 0 && (v.tag != m->call.tag || v.length != m->length)) die(1, "not the message that was sent");
    size_t left = m->length - done;
    long n = hk_ring_recv(&c->base, &CALL, place, draw(pace) % 2 ? left : 1 + left / 2);
    const long came = n;
    if (n < 0) return n;
    size_t from = done;
    if (c->invited) { /* from both ends: a packet is there when all of it is */
        n = c->data == NULL ? (long)c->packet : 0;
        from = done + (size_t)came - (size_t)n;
    }
    for (long i = 0; i < n; i++)
        if ((unsigned char)place[i] != letter(m->call.tag, from + (size_t)i)) die(1, "wrong data");
    n = came;
    if (done + (size_t)n == m->length) hk_ring_consume(&c->base, &CALL, 0, 1);
    return n;
}

static void receive_one(hk_consumer *c, uint32_t *bell, const message *m, rng *pace, int reader) {
    hk_wait wait = {0};
    size_t done = 0;
    const int into_place = m->length && draw(pace) % 2;
    for (;;) {
        long n = into_place ? take(c, m, done, pace, reader) : look(c, m, done, pace);
        if (n == HK_AGAIN) {
            pause_or_die(&wait, bell);
            continue;
        }
        if (n < 0) die(1, "a fault from an honest producer");
        hk_wait_reset(&wait, &LADDER, bell);
        done += (size_t)n;
        if (done == m->length) return;
    }
}

typedef struct reader {
    place *w;
    int index;
} reader;

static void *consume(void *arg) {
    reader *me = arg;
    place *w = me->w;
    rng r = {w->start}, pace = {(uint64_t)me->index};
    for (uint64_t i = 0; i < w->count; i++) {
        message m = next_message(&r, i, w->readers > 1);
        if (i % BURST == 0) usleep(5000 * (useconds_t)(me->index + 1));
        if (m.to != READERS && m.to != me->index) continue;
        if (draw(&pace) % 64 == 0) usleep(200);
        receive_one(&w->consumer[me->index], w->consumer_bell[me->index], &m, &pace, me->index);
    }
    return NULL;
}

static void job(uint32_t start, uint64_t count, int readers) {
    place *w = build(start, count, readers);
    pthread_t thread[READERS + 1];
    reader me[READERS];
    pthread_create(&thread[READERS], NULL, produce, w);
    for (int i = 0; i < readers; i++) {
        me[i] = (reader){w, i};
        pthread_create(&thread[i], NULL, consume, &me[i]);
    }
    for (int i = 0; i < readers; i++) pthread_join(thread[i], NULL);
    pthread_join(thread[READERS], NULL);
}

/* --- marks: after 2^31 packets and more, without a single one by reference or in a slot */

static void marks(void) {
    static const uint32_t COUNTERS[] = {1, 64, 0x7fffffff, 0x80000000, 0x80000001, 0xc0000000, 0xfffffff0};
    static char source[HK_SLOT_BYTES];
    for (size_t i = 0; i < sizeof COUNTERS / sizeof *COUNTERS; i++) {
        place *w = build(COUNTERS[i], 0, 1); /* the marks are still 0 */
        hk_channel *all[READERS] = {&w->producer[0].base, &w->producer[1].base, &w->producer[2].base};
        if (!hk_ring_settled(all[0], &CALL)) die(1, "a memory that was never named is not settled");
        w->shared.readers[0] = 1, w->shared.reader[0][0] = &w->producer[0];
        if (hk_ring_multicast(all, READERS, &CALL, 100, 0, source, 100) != 100)
            die(1, "a multicast slot released long ago is not free");
        for (int k = 1; k < HK_SMALL_SLOTS; k++) /* one line has gone to the multicast */
            if (hk_ring_send(all[0], &CALL, 100, 0, source, 100) != 100)
                die(1, "a small slot released long ago is not free");
        for (int k = 0; k < CIRCLE / HK_SLOT_BYTES; k++)
            if (hk_ring_send(all[0], &CALL, HK_SLOT_BYTES, 0, source, HK_SLOT_BYTES) != HK_SLOT_BYTES)
                die(1, "a slot released long ago is not free");
        if (hk_ring_send(all[0], &CALL, 100, 0, source, 100) != HK_AGAIN) die(1, "a slot in use was written");
    }
}

/* --- hostile: random lines, in a window with nothing behind it */

static void spoil(rng *r, uint64_t end, hk_line *line, uint32_t seq) {
    const uint64_t EDGES[] = {0, 1, end - 1, end, end + 1, end - HK_SLOT_BYTES, UINT64_MAX, UINT64_MAX - 1000, 1ull << 63};
    const uint32_t LENGTHS[] = {0, 1, HK_INLINE, HK_INLINE + 1, HK_SLOT_BYTES, HK_SLOT_BYTES + 1, 1u << 31, HK_PACKET_MAX};
    const uint32_t FLAGS[] = {0, HK_REF, HK_REF, HK_REF, HK_REF | HK_FAR, HK_FAR};
    line->tag = draw(r);
    line->len = draw(r) % 4 ? LENGTHS[draw(r) % 8] | FLAGS[draw(r) % 6] : (uint32_t)draw(r);
    line->u.ref.where = draw(r) % 4 ? EDGES[draw(r) % 9] : draw(r) % (2 * end);
    line->u.ref.length = draw(r) % 4 ? 1ull << 28 : draw(r) % 100000;
    hk_store32(&line->seq, draw(r) % 4 ? seq : (uint32_t)draw(r));
}

static volatile char sink;

/* Read what peek says can be read: AddressSanitizer watches.  Returns peek's answer. */
static int taste(place *w, hk_consumer *c, rng *r) {
    hk_view v;
    int rc = hk_ring_peek(&c->base, &CALL, &v, 1);
    if (rc == 1 && v.avail) {
        if (v.data < w->window || v.avail > w->window_bytes || v.data + v.avail > w->window + w->window_bytes)
            die(1, "peek names memory outside the window");
        if (v.avail > v.length) die(1, "a packet is longer than its message");
        for (size_t i = 0; i < v.avail; i += 1 + v.avail / 64) sink ^= v.data[i];
        sink ^= v.data[v.avail - 1];
        hk_ring_consume(&c->base, &CALL, draw(r) % (v.avail + 1), 0);
    } else if (rc == 1) {
        if (v.length != 0) die(1, "an empty packet of a message that is not");
        hk_ring_consume(&c->base, &CALL, 0, 1);
    } else if (rc != HK_AGAIN && rc != HK_FAULT) {
        die(1, "peek says neither data, again nor fault");
    } else if (rc == HK_FAULT && c->data != NULL) {
        die(1, "a packet is open after a fault");
    }
    return rc;
}

static void hostile(uint64_t seed, uint64_t count) {
    place *w = build((uint32_t)seed, 0, 1);
    rng r = {seed};
    hk_consumer *c = &w->consumer[0];
    c->pid = HK_NO_MEMORY;
    char source[HK_SLOT_BYTES];
    memset(source, 1, sizeof source);
    uint64_t faults = 0, reads = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (c->data == NULL) spoil(&r, w->window_bytes, &c->ring->line[c->next % HK_LINES], c->next + 1);
        int rc = taste(w, c, &r);
        faults += rc == HK_FAULT, reads += rc == 1;
        hk_producer *p = &w->producer[1]; /* and a reader that lies about what it has finished */
        hk_store32(&p->ring->released, (uint32_t)draw(&r));
        const size_t length = draw(&r) % 2 ? 8 : sizeof source;
        (void)hk_ring_send(&p->base, &CALL, length, 0, source, draw(&r) % 2 ? 8 : sizeof source);
    }
    if (faults < count / 10 || reads < count / 10) die(1, "the hostile lines are not hostile");
}

/* --- scribble: between the check and the use */

static uint32_t finished, scribbles;

static void *scribble(void *arg) {
    place *w = arg;
    hk_line *line = w->consumer[0].ring->line;
    for (uint64_t i = 0; !hk_load32(&finished); i++) {
        hk_line *one = &line[i % HK_LINES];
        __atomic_store_n(&one->u.ref.where, i % 3 ? 0 : UINT64_MAX - HK_SLOT_BYTES, __ATOMIC_RELAXED);
        __atomic_store_n(&one->len, (i % 5 ? 1000u : 0x7fffffffu) | HK_REF, __ATOMIC_RELAXED);
        hk_store32(&scribbles, (uint32_t)i);
    }
    return NULL;
}

static void scribbled(uint64_t seed, uint64_t count) {
    place *w = build((uint32_t)seed, count, 1);
    rng r = {seed};
    hk_consumer *c = &w->consumer[0];
    c->pid = HK_NO_MEMORY;
    pthread_t thread;
    for (int i = 0; i < HK_LINES; i++) c->ring->line[i].u.ref.length = 1ull << 30;
    pthread_create(&thread, NULL, scribble, w);
    for (uint64_t read = 0; read < count || hk_load32(&scribbles) < count;) {
        __atomic_store_n(&c->ring->line[c->next % HK_LINES].seq, c->next + 1, __ATOMIC_RELAXED);
        read += taste(w, c, &r) == 1;
    }
    hk_store32(&finished, 1);
    pthread_join(thread, NULL);
}

/* --- foreign: a process that shares the window, from a descriptor of its own, and does in it what it likes */

enum { GROWTHS = 64 };
#define RESERVED ((size_t)1 << 32)

static char *map(int fd) {
    char *at = mmap(NULL, RESERVED, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (at == MAP_FAILED) die(1, "no addresses for a window");
    return at;
}

/* `at`: the packet that its victim looks for. */
static void misbehave(int fd, uint64_t seed, const uint32_t *at) {
    char *window = map(fd);
    hk_ring *ring = (hk_ring *)window, *other = ring + 1;
    rng r = {seed};
    struct stat file;
    for (uint64_t i = 0;; i++) {
        fstat(fd, &file);
        const uint32_t next = hk_load32(at) + (uint32_t)(draw(&r) % 3);
        spoil(&r, draw(&r) % 8 ? (uint64_t)file.st_size : RESERVED, &ring->line[next % HK_LINES], next + 1);
        other->released = (uint32_t)draw(&r);
        if (i % 64 == 0) memset(window + draw(&r) % (window_size() - 256) / 8 * 8, (int)draw(&r), 256);
        if (i % 8192 == 8191 && i / 8192 < GROWTHS && ftruncate(fd, file.st_size + HK_SLOT_BYTES) != 0) _exit(1);
    }
}

static void foreign(uint64_t seed, uint64_t count) {
    const int fd = memfd_create("foreign", MFD_ALLOW_SEALING), theirs = dup(fd), size = (int)window_size();
    if (fd < 0 || ftruncate(fd, size) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) die(1, "no window");
    uint32_t *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        misbehave(theirs, seed, at);
    }
    place *w = build_in(map(fd), 0, count, 1);
    rng r = {seed + 1};
    hk_consumer *c = &w->consumer[0];
    hk_producer *p = &w->producer[1];
    c->window_fd = &fd, c->window_reserved = RESERVED, c->pid = child;
    char *place = malloc(HK_SLOT_BYTES), source[HK_SLOT_BYTES] = {0};
    uint64_t faults = 0, reads = 0, vain = 0, t0 = hk_now();
    while (reads < count || faults < count) { /* the same bad line may be looked at many times */
        hk_view v;
        int rc = hk_ring_peek(&c->base, &CALL, &v, draw(&r) % 2);
        if (rc == 1 && draw(&r) % 2) { /* in place: what is shown is there */
            for (size_t i = 0; i < v.avail; i += 1 + v.avail / 64) sink ^= v.data[i];
            if (v.avail) sink ^= v.data[v.avail - 1];
            hk_ring_consume(&c->base, &CALL, v.avail, 1);
        } else if (rc == 1) {
            const size_t room = draw(&r) % 2 ? HK_SLOT_BYTES : 1 + draw(&r) % 100;
            const long n = hk_ring_recv(&c->base, &CALL, place, room);
            if (n > (long)room) die(1, "more was received than there was room");
            rc = n < 0 ? (int)n : 1;
        }
        vain = rc == HK_AGAIN && c->data != NULL ? vain + 1 : 0; /* who was invited, and does not write: a time limit's */
        if ((rc == HK_FAULT && (c->remote || c->invited)) || vain == (c->asked ? 10 : 1000)) /* it stays open: on to the next */
            c->packet = 0, hk_ring_consume(&c->base, &CALL, 0, 1);
        faults += rc == HK_FAULT, reads += rc == 1;
        hk_store32(at, c->next);
        const size_t length = draw(&r) % 2 ? 8 : sizeof source;
        (void)hk_ring_send(&p->base, &CALL, length, 0, source, draw(&r) % 2 ? 8 : sizeof source);
        if (hk_now() - t0 > 4 * HK_STUCK_NS) die(2, "stuck");
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

int main(int argc, char **argv) {
    if (argc != 4) return 64;
    const uint64_t first = strtoull(argv[2], NULL, 0), count = strtoull(argv[3], NULL, 0);
    if (strcmp(argv[1], "pair") == 0) job((uint32_t)first, count, 1);
    else if (strcmp(argv[1], "multicast") == 0) job((uint32_t)first, count, READERS);
    else if (strcmp(argv[1], "marks") == 0) marks();
    else if (strcmp(argv[1], "hostile") == 0) hostile(first, count);
    else if (strcmp(argv[1], "scribble") == 0) scribbled(first, count);
    else if (strcmp(argv[1], "foreign") == 0) foreign(first, count);
    else return 64;
    puts("ok");
    return 0;
}
