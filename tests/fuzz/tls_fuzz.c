/* A hostile network between the two ends of an encrypted stream (system/tls.h): bytes are flipped, records cut,
 * dropped, repeated and put in another order, in the handshake and after it.
 *
 * Whatever it does, the receiver gets a beginning of what was sent, byte by byte, then waits or has an error.
 *
 *   gcc -fsanitize=address,undefined ...    tls_fuzz SECONDS SEED FILE...
 *
 * The files are what others have sent (tests/fuzz/tls): each is said to both kinds of end, and is put between records. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "transports/tcp/tls_channels.h"

enum { ROOM = 1 << 20, MESSAGES = 6, FILES = 64 };
static struct {
    unsigned char data[20000];
    size_t size;
} corpus[FILES];
static size_t known;

static uint64_t state;

static uint64_t draw(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static void must(int true_, const char *what) {
    if (true_) return;
    fprintf(stderr, "tls_fuzz: %s\n", what);
    abort();
}

/* The network: from one end's socket to the other's. */
typedef struct wire {
    int from, to;
} wire;

static size_t record_at(const unsigned char *data, size_t at, size_t size) {
    const size_t n = at + 5 <= size ? 5 + ((size_t)data[at + 3] << 8 | data[at + 4]) : size - at;
    return n < size - at ? n : size - at;
}

/* Do something to what passes; its new length. */
static size_t harm(unsigned char *data, size_t size) {
    static unsigned char copy[ROOM];
    size_t start[64], n = 0, out = 0;
    for (size_t at = 0; at < size && n < 63; at += record_at(data, at, size)) start[n++] = at;
    start[n] = size;
    switch (draw() % 8) {
    case 0: data[draw() % size] ^= (unsigned char)(1 << draw() % 8); return size;
    case 1: return draw() % size;
    case 2: data[draw() % 5 % size] = (unsigned char)draw(); return size;
    case 3: /* what others have sent, before a record */
        if (known) {
            const size_t which = draw() % known, at = start[draw() % n], len = corpus[which].size;
            if (size + len > ROOM) return size;
            memmove(data + at + len, data + at, size - at);
            memcpy(data + at, corpus[which].data, len);
            return size + len;
        }
        break;
    default: break;
    }
    const size_t one = draw() % n, other = draw() % n, kind = draw() % 3;
    for (size_t i = 0; i < n; i++) {
        const size_t from = kind == 0 && i == one ? other : i; /* another instead; or not at all; or twice */
        for (int times = kind == 1 && i == one ? 0 : kind == 2 && i == one ? 2 : 1; times > 0; times--) {
            const size_t len = start[from + 1] - start[from];
            if (out + len > ROOM) return out;
            memcpy(copy + out, data + start[from], len);
            out += len;
        }
    }
    memcpy(data, copy, out);
    return out;
}

/* 1 if it has done harm. */
static int pass(wire w, int harmful) {
    static unsigned char data[ROOM];
    long n = recv(w.from, data, ROOM / 2, MSG_DONTWAIT);
    if (n <= 0) return 0;
    const size_t size = harmful ? harm(data, (size_t)n) : (size_t)n;
    if (size) must(send(w.to, data, size, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 || errno == EPIPE || errno == EAGAIN, "send");
    return harmful;
}

static void join(int fd[2]) {
    must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd) == 0, "socketpair");
    const int room = 4 << 20;
    for (int i = 0; i < 2; i++) {
        setsockopt(fd[i], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
        setsockopt(fd[i], SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    }
}

static char letter(uint64_t tag, size_t i) { return (char)(tag * 7 + i * 131 + (i >> 8)); }

/* How many messages came whole. */
static int once(hk_ssl *lib, unsigned long *shaken) {
    static const size_t LENGTHS[] = {0, 1, 8, 100, 16360, 16361, 70000, 140000};
    static char source[140000], place[140000];
    const int early = draw() % 4 == 0, harmful = draw() % 8 != 0, cipher = draw() % 4 == 0;
    unsigned char key[HK_TLS_KEY] = {1};
    int left[2], right[2], arrived = 0, x, y, damage = harmful;
    join(left), join(right);
    const wire there = {left[1], right[0]}, back = {right[0], left[1]};
    hk_tls a = {0}, b = {0};
    must(hk_tls_open(&a, lib, NULL, left[0], key, 0, cipher) == 0, "open");
    must(hk_tls_open(&b, lib, NULL, right[1], key, 1, 0) == 0, "open");
    if (draw() % 4 == 0) a.renew = 1000;
    for (int i = 0; i < 20; i++) {
        x = hk_tls_shake(&a);
        if (pass(there, early && damage && draw() % 2)) damage = 0;
        y = hk_tls_shake(&b);
        if (pass(back, early && damage && draw() % 2)) damage = 0;
        if (x != HK_AGAIN && y != HK_AGAIN) break;
    }
    *shaken += x == 1 && y == 1;
    if (x == 1 && y == 1) {
        hk_tls_sender s = {{.ops = &hk_tls_sender_ops, .fd = left[0]}, &a};
        hk_tls_receiver r = {.plain = {.base = {.ops = &hk_tls_receiver_ops, .fd = right[1]}}, .tls = &b};
        hk_channel *in = &r.plain.base;
        int rc = 1;
        for (uint64_t tag = 0; tag < MESSAGES && rc == 1; tag++) {
            const size_t length = LENGTHS[draw() % 8];
            const hk_call call = {.tag = tag};
            for (size_t i = 0; i < length; i++) source[i] = letter(tag, i);
            size_t done = 0, got = 0;
            int begun = 0, idle = 0;
            for (int first = 1; first || got < length; first = 0) {
                if (done < length || (length == 0 && first)) {
                    const long n = hk_tls_send(&s.base, &call, length, done, source + done, length - done);
                    must(n >= 0 || n == HK_AGAIN || n == HK_LOST, "an end cannot send");
                    if (n > 0) done += (size_t)n;
                } else {
                    (void)hk_tls_settled(&s.base, &call);
                }
                if (pass(there, !early && damage && draw() % 4 == 0)) damage = 0;
                hk_view v;
                rc = hk_tls_peek(in, &call, &v, 0);
                if (rc == 1) {
                    must(v.tag == tag && v.length == length, "a header that was not sent");
                    begun = 1;
                    const long n = length ? hk_tls_recv(in, &call, place + got, length - got) : 0;
                    if (n < 0) rc = (int)n;
                    else got += (size_t)n;
                    if (n > 0) idle = 0;
                }
                if (rc != 1 && rc != HK_AGAIN) break;
                rc = 1;
                if (++idle > 20) break; /* it has been kept back */
            }
            for (size_t i = 0; i < got; i++) must(place[i] == letter(tag, i), "bytes that were not sent");
            if (rc != 1 || !begun || got < length) break;
            hk_stream_consume(in, &call, 0, 1);
            arrived++;
        }
        must(rc == 1 || rc == HK_LOST || (rc == HK_FAULT && b.words[0]), "a fault without a word");
        must(damage == 0 || arrived == MESSAGES || harmful, "an honest network, and a message is missing");
        free(r.plain.stage);
    }
    hk_tls_close(&a), hk_tls_close(&b);
    for (int i = 0; i < 2; i++) close(left[i]), close(right[i]);
    must(harmful || arrived == MESSAGES, "an honest network, and not all messages came");
    return arrived;
}

/* An end of a connection to somebody who says just this: it does not shake hands, and gives nothing out. */
static void alone(hk_ssl *lib, const unsigned char *data, size_t size, int server) {
    unsigned char key[HK_TLS_KEY] = {1};
    int fd[2], rc = HK_AGAIN;
    char got[64];
    join(fd);
    hk_tls t = {0};
    must(hk_tls_open(&t, lib, NULL, fd[0], key, server, 0) == 0, "open");
    must(hk_tls_shake(&t) == HK_AGAIN, "a handshake without a word");
    must(send(fd[1], data, size, MSG_NOSIGNAL) == (long)size, "send");
    shutdown(fd[1], SHUT_WR);
    for (int i = 0; i < 20 && rc == HK_AGAIN; i++) rc = hk_tls_shake(&t);
    must(rc == HK_LOST || (rc == HK_FAULT && t.words[0]), "a stranger has shaken hands");
    must(hk_tls_unseal(&t, got, sizeof got) < 0, "bytes of a stranger");
    hk_tls_close(&t);
    close(fd[0]), close(fd[1]);
}

int main(int argc, char **argv) {
    if (argc < 3 || argc > 3 + FILES) return 64;
    static hk_ssl lib;
    char why[256];
    must(hk_tls_open_library(&lib, "libssl.so.3", why, sizeof why) == 0, "no libssl.so.3");
    for (int i = 3; i < argc; i++, known++) {
        FILE *file = fopen(argv[i], "rb");
        must(file != NULL, argv[i]);
        corpus[known].size = fread(corpus[known].data, 1, sizeof corpus[known].data, file);
        fclose(file);
        for (int server = 0; server < 2; server++) alone(&lib, corpus[known].data, corpus[known].size, server);
    }
    state = 88172645463325252u ^ strtoull(argv[2], NULL, 0) * 0x9e3779b97f4a7c15u;
    unsigned long runs = 0, shaken = 0, whole = 0, cut = 0;
    const double until = (double)clock() / CLOCKS_PER_SEC + atof(argv[1]);
    for (; (double)clock() / CLOCKS_PER_SEC < until; runs++) {
        const int arrived = once(&lib, &shaken);
        whole += arrived == MESSAGES, cut += arrived > 0 && arrived < MESSAGES;
    }
    must(shaken > runs / 2 && whole > runs / 20 && cut > runs / 20, "nothing was tried");
    printf("ok %lu\n", runs);
    return 0;
}
