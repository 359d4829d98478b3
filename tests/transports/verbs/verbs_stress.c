/* The two ends of a channel (writer.h, reader.h) over the stand-in for libibverbs, under sanitizers:
 *
 *   verbs_stress pair SEED COUNT      a writer and a reader, each a thread, through COUNT messages
 *   verbs_stress hostile SEED COUNT   a reader is fed whatever a writer's process may put into its ring, and tell it
 *   verbs_stress words SEED COUNT     a writer hears whatever a reader's process may say
 *
 * Prints ok; or what went wrong, and ends with 1.  One file, as all jobs make the same channel. */
#include "fake_verbs.c"

#include <fcntl.h>

#include "transports/verbs/reader.h"

#define SET(result, name, arguments) .name = name,
static hk_ibv library = {HK_IBV_FUNCTIONS(SET)};
static hk_pins pins[2];
static unsigned dice;

static void must(int is_so, const char *what) {
    if (is_so) return;
    fprintf(stderr, "verbs_stress: %s\n", what);
    exit(1);
}

static uint32_t roll(uint32_t n) { return (uint32_t)(((uint64_t)rand_r(&dice) << 16 ^ (uint64_t)rand_r(&dice)) % n); }

/* ------------------------------------------------------------------------ a channel, made as channels.pyx makes it */

typedef struct made { hk_v_writer w; hk_v_reader r; struct ibv_pd *pd; struct ibv_mr *mr[2]; } made;

static void end_make(hk_v_end *e, struct ibv_pd *pd) {
    e->v = &library, e->pd = pd, e->max_inline = 220;
    e->events = ibv_create_comp_channel(pd->context);
    fcntl(e->events->fd, F_SETFL, O_NONBLOCK);
    e->cq = ibv_create_cq(pd->context, HK_V_WORDS + HK_V_SENDS + HK_V_OFFERS + HK_V_MORE_SENDS, NULL, e->events, 0);
    for (int i = 0; i < 2; i++) {
        struct ibv_qp_init_attr a = {.send_cq = e->cq, .recv_cq = e->cq, .qp_type = IBV_QPT_RC};
        a.cap.max_send_wr = i ? HK_V_MORE_SENDS : HK_V_SENDS;
        a.cap.max_recv_wr = i ? HK_V_OFFERS : HK_V_WORDS;
        a.cap.max_inline_data = i ? 0 : 220;
        e->qp[i] = ibv_create_qp(pd, &a);
    }
}

static void end_connect(hk_v_end *e, const hk_v_end *to, int access) {
    for (int i = 0; i < 2; i++) {
        struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .qp_access_flags = (unsigned)access, .port_num = 1};
        ibv_modify_qp(e->qp[i], &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
        a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .dest_qp_num = to->qp[i]->qp_num};
        a.ah_attr = (struct ibv_ah_attr){.grh = {.dgid = {[15] = 1}, .hop_limit = 1}, .is_global = 1, .port_num = 1};
        ibv_modify_qp(e->qp[i], &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
                      | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
        a.qp_state = IBV_QPS_RTS;
        must(ibv_modify_qp(e->qp[i], &a, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT
                           | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC) == 0, "not connected");
    }
}

static void open_link(made *l, struct ibv_pd *pd) {
    memset(l, 0, sizeof *l);
    l->pd = pd;
    l->w.pins = &pins[0], l->r.pins = &pins[1];
    l->w.base.ops = &hk_v_writer_ops, l->r.base.ops = &hk_v_reader_ops;
    end_make(&l->w.end, pd);
    end_make(&l->r.end, pd);
    l->w.ring = calloc(1, HK_V_WRITER_BYTES);
    l->r.ring = calloc(1, HK_V_RING);
    l->mr[0] = ibv_reg_mr(pd, l->w.ring, HK_V_WRITER_BYTES, IBV_ACCESS_LOCAL_WRITE);
    l->mr[1] = ibv_reg_mr(pd, l->r.ring, HK_V_RING, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    l->w.lkey = l->mr[0]->lkey, l->w.rkey = l->mr[1]->rkey, l->w.remote = (uint64_t)(uintptr_t)l->r.ring;
    end_connect(&l->r.end, &l->w.end, IBV_ACCESS_REMOTE_WRITE);
    end_connect(&l->w.end, &l->r.end, 0);
    for (uint32_t i = 0; i < HK_V_WORDS; i++) hk_v_writer_post_recv(&l->w, i), hk_v_reader_post_recv(&l->r.end, 0);
    for (int i = 0; i < HK_V_OFFERS; i++) {
        hk_v_reader_post_recv(&l->r.end, 1);
        l->r.window[i] = is.windows ? hk_v_alloc_window(pd) : NULL;
    }
    l->w.end.nqp = l->r.end.nqp = 2;
}

static void close_end(hk_v_end *e) {
    for (int i = 0; i < 2; i++) ibv_destroy_qp(e->qp[i]);
    ibv_destroy_cq(e->cq);
    ibv_destroy_comp_channel(e->events);
}

static void close_link(made *l) {
    hk_v_writer_ops.forget(&l->w.base);
    hk_v_reader_ops.forget(&l->r.base);
    close_end(&l->w.end);
    close_end(&l->r.end);
    for (int i = 0; i < HK_V_OFFERS; i++)
        if (l->r.window[i]) hk_v_free_window(l->r.window[i]);
    ibv_dereg_mr(l->mr[0]);
    ibv_dereg_mr(l->mr[1]);
    if (l->r.stage_mr) ibv_dereg_mr(l->r.stage_mr);
    free(l->w.ring), free(l->r.ring), free(l->r.stage);
}

static void pin(hk_pins *p, struct ibv_pd *pd, int i, char *at, size_t len) {
    const int access = IBV_ACCESS_LOCAL_WRITE | (is.windows ? IBV_ACCESS_MW_BIND : 0);
    p->pin[i] = (hk_pin){ibv_reg_mr(pd, at, len, access), at, len, 0, 0};
}

/* ------------------------------------------------------------------------------------------- both of good will */

enum { LONGEST = 1 << 20 };
static char *from[2], *to[2]; /* the second of each is registered */
static made both;
static uint32_t count, seed;
static const hk_call CALL = {.tag = 1}; /* where the tag does not matter */

static size_t length_of(uint32_t i, unsigned *own) {
    *own = seed * 7919 + i;
    const uint32_t kind = (uint32_t)rand_r(own) % 6;
    return kind == 0 ? 0 : kind < 3 ? (size_t)rand_r(own) % 200 : kind < 5 ? (size_t)rand_r(own) % 200000
        : (size_t)rand_r(own) % LONGEST;
}

static void *write_all(void *unused) {
    hk_channel *ch = &both.w.base;
    unsigned own;
    for (uint32_t i = 0; i < count; i++) {
        const size_t length = length_of(i, &own);
        char *src = from[rand_r(&own) & 1];
        if (length) memset(src, (int)(i % 251), length);
        const hk_call call = {.tag = i};
        size_t done = 0;
        int begun = 0, rc;
        while (done < length || !begun) {
            const long n = hk_v_send(ch, &call, length, done, src + done, length - done);
            must(n >= 0 || n == HK_AGAIN, "cannot send");
            if (n == HK_AGAIN) sched_yield();
            else done += (size_t)n, begun = 1;
        }
        while ((rc = hk_v_settled(ch, &call)) == 0) sched_yield();
        must(rc == 1, "never settled");
        if (length) memset(src, 0xff, length); /* ours again */
    }
    while (both.w.finished != both.w.packets && !both.w.end.bye) hk_v_writer_poll(&both.w), sched_yield();
    return unused;
}

static void *read_all(void *unused) {
    hk_channel *ch = &both.r.base;
    unsigned own;
    hk_view v;
    for (uint32_t i = 0; i < count; i++) {
        const size_t length = length_of(i, &own);
        int rc, by_peek;
        rand_r(&own);
        by_peek = rand_r(&own) & 1;
        char *dst = to[rand_r(&own) & 1];
        while ((rc = hk_v_peek(ch, &CALL, &v, 0)) == HK_AGAIN) sched_yield();
        must(rc == 1 && v.tag == i && v.length == length, "another message");
        for (size_t done = 0; done < length;) {
            long n = HK_AGAIN;
            if (!by_peek) {
                n = hk_v_recv(ch, &CALL, dst + done, length - done);
            } else if ((rc = hk_v_peek(ch, &CALL, &v, 16)) == 1 && v.avail) {
                must(v.avail <= length - done, "more than the message has");
                memcpy(dst + done, v.data, v.avail);
                n = (long)v.avail;
                must(hk_v_consume(ch, &CALL, v.avail, done + v.avail == length) == 0, "cannot receive");
            }
            must(n > 0 || n == HK_AGAIN, "cannot receive");
            if (n == HK_AGAIN) sched_yield();
            else done += (size_t)n;
        }
        must((by_peek && length) || hk_v_consume(ch, &CALL, 0, 1) == 0, "cannot end a message");
        for (size_t at = 0; at < length; at++) must(dst[at] == (char)(i % 251), "other bytes");
    }
    hk_v_say(&both.r, HK_V_NOBODY, 0, 0, NULL); /* the rest of the room */
    return unused;
}

static void pair(struct ibv_pd *pd) {
    pthread_t thread;
    for (int i = 0; i < 2; i++) from[i] = malloc(LONGEST), to[i] = malloc(LONGEST);
    pin(&pins[0], pd, 0, from[1], LONGEST);
    pin(&pins[1], pd, 0, to[1], LONGEST);
    open_link(&both, pd);
    pthread_create(&thread, NULL, write_all, NULL);
    read_all(NULL);
    pthread_join(thread, NULL);
    close_link(&both);
    must(is.overflows == 0 && is.misuses == 0 && is.bad_keys == 0, "the device was misused");
    must(count < 50 || is.long_writes > 10, "nothing went uncopied");
}

/* ---------------------------------------------------------------------------------------------- of bad will */

static uint32_t odd32(void) {
    static const uint32_t odd[] = {0, 1, 16, 31, 32, 65535, 65536, 65537, HK_V_PIECE, HK_V_PIECE + 1, HK_V_OFFER,
        HK_V_BYE, HK_V_COUNT, 0x7ffffffe, 0x80000000, 0xffffffff};
    return roll(2) ? odd[roll(16)] : roll(1u << 31) * 2 + roll(2);
}

/* A packet somewhere in the ring, mostly nearly right, and its word. */
static uint32_t packet(hk_v_reader *r, uint64_t tag, uint64_t length) {
    const uint32_t place = roll(40) ? roll(HK_V_RING / HK_V_ALIGN) : odd32();
    hk_v_head head = {tag, length, roll(3) ? roll(3000) : HK_V_OFFER | (1 + roll(HK_V_PIECE)), roll(HK_V_OFFERS), 0};
    if (roll(4) == 0) head.len = (head.len & HK_V_OFFER) | (uint32_t)length;
    if (roll(60) == 0) head.len = odd32();
    if (roll(60) == 0) head.tag = odd32();
    if (roll(60) == 0) head.length = odd32();
    if (roll(60) == 0) head.offer = odd32();
    if (place < HK_V_RING / HK_V_ALIGN) memcpy(r->ring + (size_t)place * HK_V_ALIGN, &head, sizeof head);
    return place;
}

static void hostile(struct ibv_pd *pd) {
    made l;
    size_t size = 0, done = 0;
    char *dst = NULL;
    long faults = 0, took = 0;
    open_link(&l, pd);
    for (uint32_t i = 0; i < count; i++) {
        hk_v_reader *r = &l.r;
        if (dst == NULL) { /* exactly as many bytes as the message has */
            size = roll(3) ? 1 + roll(5000) : 1 + roll(600000);
            dst = malloc(size), done = 0;
            pin(&pins[1], pd, 0, dst, size);
        }
        struct ibv_wc wc = {.opcode = 129, .wr_id = HK_V_IS_RECV, .byte_len = odd32()};
        hk_v_packet *p = hk_v_at(r, r->finished + roll(4));
        uint32_t word = packet(r, 7, size);
        if (roll(3) == 0) {
            word = HK_V_PIECE_CAME | (roll(4) ? p->head.offer % HK_V_OFFERS : odd32() & 0xffff);
            if (roll(8)) wc.byte_len = (uint32_t)hk_v_len(p);
        } else if (roll(200) == 0) {
            word = odd32();
        }
        wc.imm_data = htonl(word);
        hk_v_arrive(r, &wc);
        hk_view v;
        int rc = hk_v_peek(&r->base, &CALL, &v, roll(2) ? 16 : 0);
        if (rc == 1 && (v.tag != 7 || v.length != size)) rc = HK_FAULT; /* the engine says so */
        if (rc == 1) {
            const size_t left = size - done;
            volatile char sink;
            for (size_t at = 0; at < v.avail; at += 61) sink = v.data[at];
            (void)sink;
            long n = roll(3) ? hk_v_recv(&r->base, &CALL, dst + done, left) : 0;
            if (n == 0 && v.avail) {
                n = (long)(v.avail < left ? v.avail : left);
                rc = hk_v_consume(&r->base, &CALL, (size_t)n, 0) < 0 ? HK_FAULT : rc;
            }
            if (n < 0 && n != HK_AGAIN) rc = (int)n;
            if (n > 0) done += (size_t)n, took++;
            must(done <= size, "more than the message has");
            if (done == size) r->open = 0;
        }
        l.w.end.status = 0;
        hk_v_poll(&l.w.end, hk_v_hear, &l.w); /* takes what the reader says, and posts receives again */
        must(r->arrived - r->finished <= HK_V_DEPTH, "more packets than there is room for");
        must(rc == 1 || rc == HK_AGAIN || rc == HK_LOST || rc == HK_FAULT, "no such answer");
        must(r->end.status != HK_V_BAD || hk_v_verdict(&r->end, &r->base) == HK_FAULT, "no fault");
        if (rc == HK_LOST || rc == HK_FAULT || r->end.status || r->end.bye || done == size) {
            faults += rc == HK_FAULT;
            if (rc != 1 || r->end.status || r->end.bye || r->arrived != r->finished || roll(3) == 0)
                close_link(&l), open_link(&l, pd);
            must(pins[1].pin[0].uses == 0, "an array is still in use");
            must(ibv_dereg_mr(pins[1].pin[0].mr) == 0, "a window is still open");
            free(dst);
            pins[1].pin[0].mr = NULL, dst = NULL;
        }
    }
    close_link(&l);
    if (dst) ibv_dereg_mr(pins[1].pin[0].mr), free(dst);
    must(faults > 20 && took > 20, "too few of each to mean anything");
}

static void words(struct ibv_pd *pd) {
    made l;
    long faults = 0, wrote = 0;
    char *src = malloc(LONGEST);
    pin(&pins[0], pd, 0, src, LONGEST);
    open_link(&l, pd);
    for (uint32_t i = 0; i < count; i++) {
        hk_v_writer *w = &l.w;
        const hk_call call = {.tag = i};
        const long n = hk_v_send(&w->base, &call, LONGEST, 0, src + roll(1000), roll(2) ? roll(3000) + 1 : 300000);
        hk_v_word word = {(w->finished + roll(3)) & HK_V_COUNT, HK_V_NOBODY, 0, 0, 0};
        if (roll(2)) {
            word = (hk_v_word){w->finished & HK_V_COUNT, roll(HK_V_OFFERS), l.mr[1]->rkey, roll(30) != 0, w->remote};
            if (roll(30) == 0) word.invited = odd32();
            if (roll(30) == 0) word.rkey = odd32();
            if (roll(30) == 0) word.qp = odd32();
            if (roll(30) == 0) word.place = odd32();
        }
        if (roll(30) == 0) word.finished = odd32();
        const uint32_t slot = roll(HK_V_WORDS);
        memcpy(hk_v_word_at(w, slot), &word, sizeof word);
        struct ibv_wc wc = {.opcode = 128, .wr_id = HK_V_IS_RECV | slot, .byte_len = roll(99) ? sizeof word : odd32()};
        hk_v_hear(w, &wc);
        hk_v_reader_post_recv(&l.r.end, 0), hk_v_reader_post_recv(&l.r.end, 1);
        for (struct ibv_wc some[16]; poll_cq(l.r.end.cq, 16, some) > 0;) continue; /* the reader is us */
        hk_v_writer_poll(w);
        wrote += n > 0;
        must(w->packets - w->finished <= HK_V_DEPTH, "more was read than was written");
        must(w->freed <= w->head && w->head - w->freed <= HK_V_RING, "the room is miscounted");
        must(w->offers >= 0 && w->offers <= HK_V_OFFERS, "the offers are miscounted");
        const int rc = hk_v_verdict(&w->end, &w->base);
        if (rc == HK_AGAIN) continue;
        faults += rc == HK_FAULT;
        close_link(&l);
        must(pins[0].pin[0].uses == 0, "an array is still in use");
        open_link(&l, pd);
    }
    close_link(&l);
    ibv_dereg_mr(pins[0].pin[0].mr);
    free(src);
    must(faults > 20 && wrote > 20, "too few of each to mean anything");
}

/* -------------------------------------------------------------------------------------- a device that says nothing */

static int wait_for(hk_channel *ch, int writes) {
    hk_view v;
    for (const uint64_t until = hk_now() + 8 * HK_V_SILENT_NS; hk_now() < until; usleep(100)) {
        const int rc = writes ? (int)hk_v_send(ch, &CALL, 8, 0, "nothing", 8) : hk_v_peek(ch, &CALL, &v, 1);
        if (rc < 0 && rc != HK_AGAIN) return rc;
    }
    return HK_AGAIN;
}

static void silence(struct ibv_pd *pd) {
    for (int writes = 0; writes < 2; writes++) {
        made back, forth;
        open_link(&back, pd);
        open_link(&forth, pd);
        forth.r.beside = &back.w;
        hk_channel *ch = writes ? &back.w.base : &forth.r.base;
        hk_view v;
        for (const uint64_t until = hk_now() + 3 * HK_V_SILENT_NS; hk_now() < until; usleep(100))
            must(writes || hk_v_peek(ch, &CALL, &v, 1) == HK_AGAIN, "lost, though the device answers");
        must(back.w.end.asked != 0 || writes, "it was never asked");
        is.mute = 1;
        must(wait_for(ch, writes) == HK_LOST && strstr(ch->words, "acknowledged nothing"), "the silence is not noticed");
        is.mute = 0;
        close_link(&back);
        close_link(&forth);
    }
    must(is.overflows == 0 && is.misuses == 0, "the device was misused");
}

int main(int argc, char **argv) {
    must(argc == 4, "verbs_stress pair|hostile|words|silence SEED COUNT");
    dice = seed = (uint32_t)atol(argv[2]), count = (uint32_t)atol(argv[3]);
    struct ibv_pd *pd = ibv_alloc_pd(ibv_open_device(&devices[0]));
    for (int i = 0; i < 2; i++) pthread_mutex_init(&pins[i].lock, NULL);
    if (strcmp(argv[1], "pair") == 0) pair(pd);
    if (strcmp(argv[1], "hostile") == 0) hostile(pd);
    if (strcmp(argv[1], "words") == 0) words(pd);
    if (strcmp(argv[1], "silence") == 0) silence(pd);
    puts("ok");
    return 0;
}
