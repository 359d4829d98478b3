/* Arbitrary bytes into the receiving side of a stream (transports/tcp/frame.h, stream.h), read as the engine reads.
 *
 * `recv` is replaced: it deals the input in pieces, says EAGAIN now and then, and closes at the end.  The first
 * byte of the input chooses how; each further one may be repaired (flag 1) so that headers pass their check and
 * what lies behind them is reached.
 *
 *   clang -fsanitize=fuzzer,address,undefined -DLIBFUZZER ...   a libFuzzer target
 *   gcc -fsanitize=address,undefined ...                        frame_fuzz SECONDS FILE...: mutates the files */
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

static ssize_t dealt(int fd, void *to, size_t n, int flags);
#define recv dealt
#include "transports/tcp/stream.h"
#undef recv

enum { HOLD = 70000 };

static const unsigned char *bytes;
static size_t left, calls, piece;

static ssize_t dealt(int fd, void *to, size_t n, int flags) {
    (void)fd, (void)flags;
    if (++calls % 3 == 0) {
        errno = EAGAIN;
        return -1;
    }
    if (n > left) n = left;
    if (piece && n > piece) n = piece;
    memcpy(to, bytes, n); /* AddressSanitizer: the room that was asked for is there */
    bytes += n, left -= n;
    return (ssize_t)n;
}

static void must(int true_, const char *what) {
    if (true_) return;
    fprintf(stderr, "frame_fuzz: %s\n", what);
    abort();
}

static const hk_call CALL = {.tag = 1};

/* One message as the engine takes it; 1 when it is over, else HK_LOST or HK_FAULT. */
static int take(hk_channel *ch, int by_peek, uint64_t *total) {
    hk_receiver *r = (hk_receiver *)ch;
    hk_view v;
    int rc;
    while ((rc = hk_stream_peek(ch, &CALL, &v, by_peek ? 16 : 0)) == HK_AGAIN) continue;
    if (rc != 1) return rc;
    const uint64_t length = v.length;
    must(length <= HK_FRAME_MAX, "a length beyond the maximum");
    char *hold = malloc(HOLD);
    uint64_t done = 0;
    while (rc == 1 && done < length) {
        uint64_t want = length - done < HOLD ? length - done : HOLD;
        long n;
        if (by_peek) {
            n = rc = hk_stream_peek(ch, &CALL, &v, 16);
            if (rc != 1) n = rc;
            else {
                must(v.avail <= length - done, "more than the message has");
                n = (long)(v.avail < want ? v.avail : want);
                memcpy(hold, v.data, (size_t)n);
                hk_stream_consume(ch, &CALL, (size_t)n, done + (uint64_t)n == length);
            }
        } else {
            n = hk_stream_recv(ch, &CALL, hold, want);
        }
        rc = n < 0 && n != HK_AGAIN ? (int)n : 1;
        if (n > 0) done += (uint64_t)n;
        must(done <= length && r->head <= r->tail && r->tail <= HK_STAGE, "the stage is out of order");
        must(r->left == length - done, "what is left is miscounted");
    }
    if (rc == 1 && !(by_peek && length)) hk_stream_consume(ch, &CALL, 0, 1);
    free(hold);
    *total += done;
    return rc;
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size) {
    if (size < 2) return 0;
    const int flags = data[0];
    static const size_t PIECES[] = {0, 1, 23, 1000};
    const size_t times = flags & 64 ? 1 + 4 * HK_STAGE / size : 1; /* until the stage runs over */
    unsigned char *copy = malloc(times * (size - 1));
    for (size_t i = 0; i < times; i++) memcpy(copy + i * (size - 1), data + 1, size - 1);
    size = 1 + times * (size - 1);
    if (flags & 1) /* repair: every header where the one before says */
        for (size_t at = 0; size - 1 - at >= HK_FRAME_BYTES;) {
            uint64_t tag, length;
            memcpy(&tag, copy + at + 8, 8), memcpy(&length, copy + at + 16, 8);
            if (flags & 2) length %= 100000;
            char header[HK_FRAME_PADDED_MORE];
            const size_t before = hk_frame_write(header, tag, length, (void *)(uintptr_t)tag), rest = size - 1 - at;
            memcpy(copy + at, header, before < rest ? before : rest);
            if (before > rest || length > rest - before) break;
            at += before + (size_t)length;
        }
    bytes = copy, left = size - 1, calls = 0, piece = PIECES[flags >> 2 & 3];
    hk_receiver r = {0};
    r.base.ops = &hk_receiver_ops;
    uint64_t total = 0;
    int rc;
    for (int i = 0; (rc = take(&r.base, (flags >> 4 & 1) ^ (flags >> 5 & i & 1), &total)) == 1; i++) continue;
    must(rc == HK_LOST || (rc == HK_FAULT && r.base.error == EPROTO), "neither lost nor a fault with its reason");
    must(total <= size, "more payload than bytes");
    free(r.stage);
    free(copy);
    return 0;
}

#ifndef LIBFUZZER
static uint64_t state = 88172645463325252u;

static uint64_t draw(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

/* A few bytes changed, a piece cut, repeated or filled up. */
static size_t mutate(unsigned char *data, size_t size, size_t room) {
    for (uint64_t n = draw() % 6; n > 0; n--) data[draw() % size] = (unsigned char)(draw() % 4 ? draw() : 0xff * (draw() & 1));
    if (draw() % 4 == 0) size = 2 + draw() % (size - 1);
    if (draw() % 3 == 0 && size < room) {
        size_t more = draw() % (room - size);
        for (size_t i = 0; i < more; i++) data[size + i] = data[i % size];
        size += more;
    }
    return size;
}

int main(int argc, char **argv) {
    enum { ROOM = 200000 };
    unsigned char *data = malloc(ROOM);
    unsigned long runs = 0;
    if (argc < 3) return 64;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    const double until = (double)t.tv_sec + (double)t.tv_nsec * 1e-9 + atof(argv[1]);
    for (;; runs++) {
        FILE *file = fopen(argv[2 + runs % (size_t)(argc - 2)], "rb");
        if (!file) return 65;
        size_t size = fread(data, 1, ROOM / 2, file);
        fclose(file);
        if (size < 2) return 66;
        const int first = runs < (size_t)(argc - 2);
        for (int i = 0; i < (first ? 1 : 20); i++) {
            if (!first) size = mutate(data, size, ROOM);
            LLVMFuzzerTestOneInput(data, size);
        }
        clock_gettime(CLOCK_MONOTONIC, &t);
        if (!first && (double)t.tv_sec + (double)t.tv_nsec * 1e-9 > until) break;
    }
    printf("ok %lu\n", runs);
    free(data);
    return 0;
}
#endif
