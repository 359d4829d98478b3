/* Arbitrary packets from the peer of a GPU channel (transports/cuda_ipc/protocol.h), while we read and write as the engine does.
 *
 * There is no GPU: the driver's functions below look at what they are asked for.  No copy may read or write beyond what
 * the two processes share, and no word be written elsewhere, whatever the peer says.
 *
 *   gcc -fsanitize=address,undefined ...   cuda_ipc_fuzz SECONDS */
#include <stdio.h>
#include <stdlib.h>

#include "transports/cuda_ipc/pair.h"
#include "system/wait.h"

enum { MEMBERS = 3, OURS = 1, CALLER = 1 << 28 };
static const CUdeviceptr window = 1ull << 40, theirs = 2ull << 40, mapped = 3ull << 40, caller = 4ull << 40;
static const size_t window_size = (MEMBERS * HK_C_SLOTS + HK_C_SHARED) * HK_C_SLOT_BYTES;
static const size_t memory_size = 3 << 20;
static uint64_t dice = 88172645463325252u;

static uint64_t roll(uint64_t sides) {
    dice ^= dice << 13, dice ^= dice >> 7, dice ^= dice << 17;
    return dice % sides;
}

static void must(int true_, const char *what) {
    if (true_) return;
    fprintf(stderr, "cuda_ipc_fuzz: %s\n", what);
    abort();
}

static int within(CUdeviceptr at, size_t n, CUdeviceptr from, size_t size) {
    return at >= from && at - from <= size && n <= size - (at - from);
}

static int is_shared(CUdeviceptr at, size_t n) {
    if (within(at, n, theirs, window_size)) return 1;
    for (uint64_t i = 0; i < HK_R_MOST; i++)
        if (within(at, n, mapped + (i << 32), memory_size)) return 1;
    return 0;
}

/* ---- the driver */

static CUresult get_current(CUcontext *c) { return *c = NULL, CUDA_SUCCESS; }
static CUresult push(CUcontext c) { return c ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT; }
static CUresult pop(CUcontext *c) { return *c = NULL, CUDA_SUCCESS; }
static CUresult words(CUresult code, const char **text) { return (void)code, *text = "refused", CUDA_SUCCESS; }

static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream stream) {
    must(stream != NULL, "a copy in no stream");
    must(within(to, n, caller, CALLER) || within(to, n, window, window_size), "a copy to elsewhere");
    must(within(from, n, caller, CALLER) || is_shared(from, n), "a copy from elsewhere");
    return roll(1000) ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

static CUresult word(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags) {
    must(stream != NULL && at % 4 == 0 && (at >> 40) == 5 && (at & 0xffff) < 4 * 4 * HK_C_ALL, "a word elsewhere");
    return (void)value, (void)flags, CUDA_SUCCESS;
}

static CUresult open_handle(CUdeviceptr *at, CUipcMemHandle handle, unsigned flags) {
    static uint64_t opened;
    (void)handle, (void)flags;
    if (roll(4) == 0) return CUDA_ERROR_MAP_FAILED;
    *at = mapped + (opened++ % HK_R_MOST << 32);
    return CUDA_SUCCESS;
}

static CUresult range(CUdeviceptr *base, size_t *size, CUdeviceptr at) {
    must(base == NULL && is_shared(at, 1), "a range that is not asked for");
    *size = memory_size;
    return roll(8) ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* ---- the host channel */

/* What a peer says, and where it is in its message. */
static struct peer {
    hk_channel in;
    hk_c_pair *pair;
    hk_c_packet coming;
    int is_there, half;
    uint32_t memory;
    uint64_t length, left;
} peers[MEMBERS];

static int floods; /* says one thing again and again, and hears nothing */

static hk_c_packet anything(void) {
    if (floods) return (hk_c_packet){.kind = HK_C_MEMORY, .slot = 1};
    static const uint64_t lengths[] = {0, 1, 100, HK_C_SLOT_BYTES, HK_C_SLOT_BYTES + 1, 3 << 20, UINT64_MAX};
    return (hk_c_packet){roll(2), lengths[roll(7)], lengths[roll(7)], lengths[roll(7)], (uint32_t)roll(70),
                         (uint16_t)roll(9), (uint16_t)roll(HK_C_ALL + 2)};
}

/* A packet that an honest peer might send, if its memory is what we have mapped of it. */
static hk_c_packet sensible(struct peer *peer) {
    const hk_c_pair *p = peer->pair;
    const unsigned slot = (unsigned)roll(HK_C_ALL);
    if (roll(3) == 0 && p->busy >> slot & 1) return (hk_c_packet){.kind = HK_C_DONE, .slot = (uint16_t)slot};
    if (peer->half) return (hk_c_packet){.kind = HK_C_MEMORY, .memory = peer->memory++, .slot = (uint16_t)peer->half--};
    if (roll(20) == 0 && peer->memory < HK_R_MOST)
        return (hk_c_packet){.kind = HK_C_MEMORY, .memory = peer->memory, .slot = (uint16_t)(peer->half++)};
    for (uint32_t i = 0; i < 3; i++)
        if (p->registered.knows[i] == HK_R_OFFERED && roll(2))
            return (hk_c_packet){.kind = HK_C_MAPPED, .memory = i, .slot = (uint16_t)roll(2)};
    if (p->came - p->first >= HK_C_SLOTS && roll(10)) return (hk_c_packet){.kind = HK_C_BYE};
    if (peer->left == 0) peer->length = peer->left = roll(4) ? roll(6 << 20) : 0;
    hk_c_packet k = {.tag = 1, .length = peer->length, .bytes = peer->left, .kind = HK_C_PIECE, .slot = (uint16_t)slot};
    const uint32_t memory = (uint32_t)roll(HK_R_MOST);
    if (p->registered.size[memory]) k.kind = HK_C_DIRECT, k.memory = memory;
    if (k.bytes > HK_C_SLOT_BYTES / 2) k.bytes = 1 + roll(HK_C_SLOT_BYTES / 2);
    if (k.kind == HK_C_DIRECT) k.offset = roll(p->registered.size[memory] - k.bytes + 1);
    peer->left -= k.bytes;
    return k;
}

static long host_send(hk_channel *ch, const hk_call *call, uint64_t length, uint64_t done, const void *src, size_t n) {
    (void)ch, (void)done, (void)src;
    must(call->tag == hk_c_packets.tag && length == sizeof(hk_c_packet) && n == length, "not a packet");
    return roll(3) && !floods ? (long)n : HK_AGAIN;
}

static int host_peek(hk_channel *ch, const hk_call *call, hk_view *v, size_t want) {
    struct peer *peer = (struct peer *)ch;
    (void)call;
    must(want == sizeof peer->coming, "not a packet");
    if (!peer->is_there) {
        if (roll(2)) return HK_AGAIN;
        peer->coming = roll(200) && !floods ? sensible(peer) : anything();
        peer->is_there = 1;
    }
    const size_t size = sizeof peer->coming;
    *v = (hk_view){roll(5000) ? hk_c_packets.tag : 7, size, (const char *)&peer->coming, size, 0};
    return 1;
}

static int host_consume(hk_channel *ch, const hk_call *call, size_t n, int end) {
    (void)call;
    must(n == sizeof(hk_c_packet) && end, "not a packet");
    ((struct peer *)ch)->is_there = 0;
    return roll(2000) ? 0 : HK_LOST;
}

/* ---- as the engine does, until the channel ends */

static uint64_t game(const hk_device *d) {
    static const hk_channel_ops out_ops = {.send = host_send}, in_ops = {.peek = host_peek, .consume = host_consume};
    static const size_t pieces[] = {0, 1, 70000, HK_R_FROM, HK_C_SLOT_BYTES + 5, 3 * HK_C_SLOT_BYTES};
    hk_channel out[MEMBERS] = {{.ops = &out_ops}, {.ops = &out_ops}, {.ops = &out_ops}};
    hk_c_common *common = calloc(1, sizeof *common);
    hk_c_pair *pairs = calloc(MEMBERS, sizeof *pairs);
    hk_device device = *d;
    hk_view v;
    uint64_t moves = 0;
    common->device = &device, common->size = MEMBERS, common->window = (char *)(uintptr_t)window;
    common->pair = calloc(MEMBERS, sizeof *common->pair);
    for (uint32_t i = 0; i < 3; i++) common->registered.memory[i] = (hk_r_memory){caller + (i << 25), 1 << 25, {{0}}};
    common->registered.count = (uint32_t)roll(4);
    floods = roll(50) == 0;
    for (int p = 0; p < MEMBERS; p++) {
        if (p == OURS) continue;
        hk_c_pair *pair = &pairs[p];
        for (uint64_t i = 0; i < HK_C_ALL; i++) {
            hk_mark *marks[] = {&pair->ready[i], &pair->peer_done[i], &pair->peer_ready[i], &pair->done[i]};
            for (uint64_t j = 0; j < 4; j++) marks[j]->word = (5ull << 40) + 4 * (4 * i + j);
        }
        pair->theirs = (const char *)(uintptr_t)(theirs + OURS * HK_C_SLOTS * HK_C_SLOT_BYTES);
        pair->their_shared = (const char *)(uintptr_t)(theirs + MEMBERS * HK_C_SLOTS * HK_C_SLOT_BYTES);
        peers[p] = (struct peer){.in = {.ops = &in_ops}, .pair = pair};
        hk_c_open(pair, common, p, &out[p], &peers[p].in);
    }
    const hk_call call = {.tag = 1, .stream = common};
    hk_channel *const both[] = {&pairs[0].tx.base, &pairs[2].tx.base};
    while (++moves < 5000 && (pairs[0].ended == 0 || pairs[2].ended == 0)) {
        const int p = roll(2) ? 0 : 2;
        hk_channel *tx = &pairs[p].tx.base, *rx = &pairs[p].rx.base;
        const size_t n = pieces[roll(6)];
        const void *src = (const void *)(uintptr_t)(caller + roll(CALLER - n));
        if (roll(4) == 0) (void)tx->ops->send(tx, &call, n, 0, n ? src : NULL, n);
        if (roll(8) == 0) (void)tx->ops->multicast(both, 2, &call, n, 0, n ? src : NULL, n);
        if (roll(4) == 0) (void)tx->ops->settled(tx, &call);
        const int rc = rx->ops->peek(rx, &call, &v, roll(2) ? 4 : 0);
        if (rc == 1) {
            must(v.avail == 0 || is_shared((CUdeviceptr)(uintptr_t)v.data, v.avail), "bytes from elsewhere are shown");
            if (roll(2) && v.avail) {
                const size_t part = roll(2) ? v.avail : 1 + roll(v.avail);
                rx->ops->consume(rx, &call, part, pairs[p].left == part);
            } else if (v.length == 0) {
                rx->ops->consume(rx, &call, 0, 1);
            } else if (v.avail && rx->ops->recv(rx, &call, (void *)(uintptr_t)caller, 1 + roll(1 << 20)) > 0) {
                if (pairs[p].left == 0) rx->ops->consume(rx, &call, 0, 1);
            }
        }
        for (int i = 0; i < MEMBERS; i++) {
            must(pairs[i].out_tail - pairs[i].out_head <= HK_C_OUTBOX, "more packets than there is room for");
            must(pairs[i].came - pairs[i].first <= HK_C_ALL, "more pieces than there is room for");
            must(pairs[i].left <= pairs[i].length, "more bytes than the message has");
        }
    }
    free(common->pair), free(common), free(pairs);
    return moves;
}

int main(int argc, char **argv) {
    const hk_cuda cuda = {
        .cuCtxGetCurrent = get_current, .cuCtxPushCurrent_v2 = push, .cuCtxPopCurrent_v2 = pop,
        .cuGetErrorString = words, .cuMemcpyAsync = copy, .cuStreamWriteValue32_v2 = word,
        .cuStreamWaitValue32_v2 = word, .cuIpcOpenMemHandle_v2 = open_handle, .cuMemGetAddressRange_v2 = range,
    };
    hk_device device = {.cuda = &cuda, .context = (CUcontext)(uintptr_t)&cuda};
    const uint64_t end = hk_now() + (uint64_t)(atof(argc > 1 ? argv[1] : "3") * 1e9);
    uint64_t games = 0, moves = 0;
    for (; hk_now() < end; games++) moves += game(&device);
    printf("ok: %lu games, %lu moves\n", (unsigned long)games, (unsigned long)moves);
    return 0;
}
