/* relay A B DELAY_US LOSS_PPM SEED: whatever frame comes at interface A or B leaves by the other one DELAY_US later.
 *
 * Of a million frames that carry data LOSS_PPM are lost, at random.  It ends with its parent, or by a signal.
 *
 * relay off NAME: what leaves by this interface is a packet of the link's size, with its sum. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/ethtool.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>

enum { FRAMES = 1 << 15, LONGEST = 9216, DATA = 200, AT_ONCE = 64, SOON = 50000 };

typedef struct {
    uint64_t due;
    size_t length;
    char *bytes;
} frame;

typedef struct {
    int from, to;
    unsigned head, tail;
    frame *frames;
} direction;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int plain(const char *name) {
    static const uint32_t offloads[] = {ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO, ETHTOOL_STXCSUM, ETHTOOL_SRXCSUM};
    const int fd = socket(AF_INET, SOCK_DGRAM, 0);
    for (int i = 0; i < 5; i++) {
        struct ethtool_value off = {offloads[i], 0};
        struct ifreq ask = {0};
        strncpy(ask.ifr_name, name, IFNAMSIZ - 1);
        ask.ifr_data = (char *)&off;
        if (ioctl(fd, SIOCETHTOOL, &ask) && offloads[i] == ETHTOOL_STXCSUM) {
            perror(name);
            return 1;
        }
    }
    return 0;
}

static int open_at(const char *name) {
    const int fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, htons(ETH_P_ALL)), room = 64 << 20, on = 1;
    struct sockaddr_ll at = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = (int)if_nametoindex(name)};
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at)) {
        perror(name);
        exit(1);
    }
    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room);
    setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on);
    setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &on, sizeof on);
    return fd;
}

static void pass_on(direction *d) {
    for (; d->head != d->tail; d->head++) {
        const frame *f = &d->frames[d->head % FRAMES];
        if (f->due > now_ns()) return;
        if (send(d->to, f->bytes, f->length, 0) < 0 && (errno == EAGAIN || errno == ENOBUFS)) return; /* again soon */
    }
}

static void take(direction *d, uint64_t delay, double lost) {
    static char bytes[LONGEST];
    for (int i = 0; i < AT_ONCE; i++) {
        const long n = recv(d->from, bytes, sizeof bytes, 0);
        if (n < 0) return;
        if ((n > DATA && drand48() < lost) || d->tail - d->head == FRAMES) continue;
        frame *f = &d->frames[d->tail++ % FRAMES];
        if (f->bytes == NULL) f->bytes = malloc(LONGEST);
        memcpy(f->bytes, bytes, (size_t)n);
        f->length = (size_t)n;
        f->due = now_ns() + delay;
    }
}

int main(int argc, char **argv) {
    if (argc == 3) return plain(argv[2]);
    if (argc != 6) return 2;
    const int a = open_at(argv[1]), b = open_at(argv[2]);
    const uint64_t delay = strtoull(argv[3], NULL, 10) * 1000;
    const double lost = atof(argv[4]) / 1e6;
    direction ways[2] = {{.from = a, .to = b}, {.from = b, .to = a}};
    srand48(atol(argv[5]));
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0; i < 2; i++) ways[i].frames = calloc(FRAMES, sizeof(frame));
    for (;;) {
        uint64_t next = now_ns() + 20000000;
        for (int i = 0; i < 2; i++) {
            direction *d = &ways[i];
            pass_on(d);
            if (d->head != d->tail && d->frames[d->head % FRAMES].due < next) next = d->frames[d->head % FRAMES].due;
        }
        const uint64_t t = now_ns();
        const struct timespec wait = {0, next > t + SOON ? (long)(next - t) : SOON};
        struct pollfd ends[2] = {{a, POLLIN, 0}, {b, POLLIN, 0}};
        ppoll(ends, 2, &wait, NULL);
        for (int i = 0; i < 2; i++) take(&ways[i], delay, lost);
    }
}
