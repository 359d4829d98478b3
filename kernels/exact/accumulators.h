/* Blocks of accumulators: sums on their way, which add without an error in any order; once per level, as kernels/cpu/table.h.
 *
 * An element of the codec `exact` is a block of HK_EXACT_BLOCK accumulators: a head, then floats, doubles, pairs of doubles
 * (sums.h), or wide numbers (wide.h): as few bytes as its numbers need.  In memory there is room for the longest behind
 * each block; on the wire there is none (`pack`).  A reader goes from block to block by the heads.  sums.h comes before. */
#ifndef HOCKET_KERNELS_ACCUMULATORS_H
#define HOCKET_KERNELS_ACCUMULATORS_H

enum { HK_IN_FLOATS = 1, HK_IN_DOUBLES, HK_IN_PAIRS, HK_IN_WORDS };

/* The head of a block of accumulators. */
typedef struct {
    u8 kind, first, words; /* HK_IN_WORDS: which words of each wide number follow; before them a byte of flags each */
    u8 count;              /* accumulators */
    u32 next;              /* bytes from this head to the next block's: the rest may be room */
    u32 terms;             /* vectors that were added up: an average divides by them */
} hk_exact_head;

/* Words first .. first + words of a wide number, as they lie in a block. */
static void hk_wide_load(hk_wide *a, const hk_codec *c, const u8 *from, int first, int words, int flags) {
    hk_wide_clear(a, c->words, c->base);
    a->flags = flags;
    memcpy(a->w + first, from, (size_t)words * 8);
    if (words && a->w[first + words - 1] >> 63)
        for (int i = first + words; i < c->words; i++) a->w[i] = ~(u64)0;
}

static void hk_wide_plus(hk_wide *a, const hk_wide *b) {
    u64 carry = 0;
    a->flags |= b->flags;
    for (int i = 0; i < a->words; i++) {
        const u64 sum = a->w[i] + b->w[i];
        const u64 over = sum < b->w[i];
        a->w[i] = sum + carry;
        carry = over | (a->w[i] < sum);
    }
}

HK_INLINE hk_exact_head hk_head_of(const u8 *block) {
    hk_exact_head head;
    memcpy(&head, block, sizeof head);
    return head;
}

/* Bytes of a block of accumulators, with its head. */
HK_INLINE size_t hk_exact_bytes(hk_exact_head head) {
    const size_t each = head.kind == HK_IN_FLOATS ? 4 : head.kind == HK_IN_DOUBLES ? 8 : head.kind == HK_IN_PAIRS ? 16
        : 1 + 8 * (size_t)head.words;
    return sizeof head + head.count * each;
}

/* Accumulator i of a block, as a wide number. */
static void hk_wide_in(hk_wide *a, const hk_codec *c, const u8 *block, size_t n, size_t i) {
    const hk_exact_head head = hk_head_of(block);
    const u8 *in = block + sizeof head;
    if (head.kind == HK_IN_WORDS)
        hk_wide_load(a, c, in + n + i * 8 * head.words, head.first, head.words, in[i]);
    else if (head.kind == HK_IN_FLOATS)
        hk_wide_of(a, c, get_f32((const any_f32 *)in, i), 0);
    else
        hk_wide_of(a, c, get_f64((const any_f64 *)in, i), head.kind == HK_IN_PAIRS ? get_f64((const any_f64 *)in, n + i) : 0);
}

/* A block of wide numbers, in as few words as hold them all.  Returns its bytes. */
static size_t hk_put_wide(const hk_codec *c, u8 *out, const hk_wide *all, size_t n, u32 terms) {
    int first = c->words, last = 0;
    for (size_t i = 0; i < n; i++) {
        const u64 *w = all[i].w, sign = (u64)0 - (w[c->words - 1] >> 63);
        int low = 0, high = c->words - 1;
        while (low < c->words && w[low] == 0) low++;
        if (low == c->words) continue;
        while (high > low && w[high] == sign && (w[high - 1] >> 63) == (sign & 1)) high--;
        if (low < first) first = low;
        if (high + 1 > last) last = high + 1;
    }
    if (last <= first) first = last = 0;
    hk_exact_head head = {HK_IN_WORDS, (u8)first, (u8)(last - first), (u8)n, (u32)c->nbytes, terms};
    memcpy(out, &head, sizeof head);
    u8 *to = out + sizeof head;
    for (size_t i = 0; i < n; i++) to[i] = (u8)all[i].flags;
    for (size_t i = 0; i < n; i++) memcpy(to + n + i * 8 * head.words, all[i].w + first, 8 * (size_t)head.words);
    return hk_exact_bytes(head);
}

/* Blocks as they are sent: without the room behind each.  Takes whole blocks of the n bytes, as many as fit. */
static size_t hk_pack_exact(const hk_codec *c, u8 *to, size_t room, const u8 *from, size_t n, size_t *taken) {
    size_t used = 0, at = 0;
    for (; at + c->nbytes <= n; at += c->nbytes) {
        hk_exact_head head = hk_head_of(from + at);
        const size_t whole = hk_exact_bytes(head);
        if (used + whole > room) break;
        head.next = (u32)whole;
        memcpy(to + used, &head, sizeof head);
        memcpy(to + used + sizeof head, from + at + sizeof head, whole - sizeof head);
        used += whole;
    }
    *taken = at;
    return used;
}

/* Whole blocks at `from`, of which n bytes have come: -1 if they are none. */
static long hk_count_exact(const hk_codec *c, const u8 *from, size_t n) {
    size_t at = 0;
    long blocks = 0;
    for (; at + sizeof(hk_exact_head) <= n; blocks++) {
        const hk_exact_head head = hk_head_of(from + at);
        if (head.kind < HK_IN_FLOATS || head.kind > HK_IN_WORDS || head.count > HK_EXACT_BLOCK || head.first + head.words > c->words
            || head.next != hk_exact_bytes(head) || head.next > n - at)
            return -1;
        at += head.next;
    }
    return at == n ? blocks : -1;
}

/* Blocks as they lie, of `n` bytes there, at `to`; NULL: none is wanted.  Returns the bytes that were read. */
static long hk_unpack_exact(const hk_codec *c, u8 *to, const u8 *from, size_t n) {
    const u8 *at = from;
    for (size_t done = 0; done < n; done += c->nbytes) {
        hk_exact_head head = hk_head_of(at);
        const size_t whole = head.next;
        if (to) {
            memcpy(to + done, at, whole);
            head.next = (u32)c->nbytes;
            memcpy(to + done, &head, sizeof head);
        }
        at += whole;
    }
    return at - from;
}

#endif

/* The pairs as a block; wide numbers must have been put where they lost something. */
HK_INLINE void AT(put_pairs)(const hk_codec *c, u8 *out, const hk_pairs *p, size_t n, u32 terms) {
    hk_exact_head head = {HK_IN_DOUBLES, 0, 0, (u8)n, (u32)c->nbytes, terms};
    f32 f[HK_EXACT_BLOCK];
    u8 *to = out + sizeof head;
    if (p->paired) {
        head.kind = HK_IN_PAIRS;
        memcpy(to + n * 8, p->e, n * 8);
    } else {
        u64 apart = 0;
        if ((f64)(f32)p->s[0] == p->s[0]) {
            for (size_t i = 0; i < n; i++) {
                f[i] = (f32)p->s[i];
                apart |= (f64)f[i] != p->s[i];
            }
            if (!apart) head.kind = HK_IN_FLOATS;
        }
    }
    memcpy(out, &head, sizeof head);
    if (head.kind == HK_IN_FLOATS)
        memcpy(to, f, n * 4);
    else
        memcpy(to, p->s, n * 8);
}

static void AT(encode_exact)(const hk_codec *c, void *to, const void *from, size_t count, double factor, hk_dice dice) {
    (void)dice;
    const int real = hk_real(c);
    const f64 by = real == HK_FLOAT64 ? factor : (f64)hk_small_factor(factor);
    const hk_terms terms = {(const u8 *)from, c->stride, NULL, c->rows, hk_real_width(real)};
    u8 *out = (u8 *)to;
    hk_pairs p;
    hk_wide all[HK_EXACT_BLOCK];
    count *= hk_parts(c);
    for (size_t at = 0; at < count; at += HK_EXACT_BLOCK, out += c->nbytes) {
        const size_t n = count - at < HK_EXACT_BLOCK ? count - at : HK_EXACT_BLOCK;
        AT(add_terms)(c, &p, &terms, at, n, by);
        if (!p.lost) {
            AT(put_pairs)(c, out, &p, n, (u32)terms.k);
            continue;
        }
        for (size_t i = 0; i < n; i++)
            if (p.off[i] == 0)
                hk_wide_of(&all[i], c, p.s[i], p.e[i]);
            else
                hk_wide_terms(&all[i], c, &terms, at + i, by);
        hk_put_wide(c, out, all, n, (u32)terms.k);
    }
}

/* The pairs of a block; 0: it has wide numbers. */
HK_INLINE int AT(get_pairs)(f64 *restrict s, f64 *restrict e, const u8 *block, size_t n, int *paired) {
    const hk_exact_head head = hk_head_of(block);
    const u8 *in = block + sizeof head;
    *paired = head.kind == HK_IN_PAIRS;
    if (head.kind == HK_IN_WORDS) return 0;
    if (head.kind == HK_IN_FLOATS) {
        f32 f[HK_EXACT_BLOCK];
        memcpy(f, in, n * 4);
        for (size_t i = 0; i < n; i++) s[i] = f[i];
    } else
        memcpy(s, in, n * 8);
    if (*paired)
        memcpy(e, in + n * 8, n * 8);
    else
        memset(e, 0, n * 8);
    return 1;
}

static void AT(decode_exact)(const hk_codec *c, void *to, const void *from, size_t count, double factor) {
    (void)factor;
    const size_t width = hk_real_width(hk_real(c));
    const u8 *in = (const u8 *)from;
    u8 *out = (u8 *)to;
    hk_pairs p;
    hk_wide a;
    p.lost = 0;
    count *= hk_parts(c);
    for (size_t at = 0; at < count; at += HK_EXACT_BLOCK, in += hk_head_of(in).next) {
        const size_t n = count - at < HK_EXACT_BLOCK ? count - at : HK_EXACT_BLOCK;
        const f64 divisor = c->divisor < 0 ? hk_head_of(in).terms : c->divisor;
        if (AT(get_pairs)(p.s, p.e, in, n, &p.paired))
            AT(store_pairs)(c, divisor, out + at * width, &p, n);
        else
            for (size_t i = 0; i < n; i++) {
                hk_wide_in(&a, c, in, n, i);
                hk_store_wide(c, divisor, out, at + i, &a);
            }
    }
}

/* Add blocks of doubles, or of floats, to p: 1; 0 if a sum loses something, or a block has more. */
HK_INLINE int AT(add_doubles)(hk_pairs *restrict p, const u8 *const *block, int k, size_t n) {
    f64 room[HK_EXACT_BLOCK], lost = 0;
    for (int j = 0; j < k; j++) {
        const int kind = hk_head_of(block[j]).kind;
        const u8 *in = block[j] + sizeof(hk_exact_head);
        if (kind > HK_IN_DOUBLES) return 0;
        if (kind == HK_IN_FLOATS) AT(load_doubles)(HK_FLOAT32, room, in, n);
        const any_f64 *x = kind == HK_IN_FLOATS ? (const any_f64 *)room : (const any_f64 *)in;
        if (j == 0) {
            HK_IVDEP for (size_t i = 0; i < n; i++) p->s[i] = x[i], p->off[i] = 0;
            continue;
        }
        HK_IVDEP for (size_t i = 0; i < n; i++) {
            const f64 s = p->s[i], t = s + x[i], part = t - s;
            p->off[i] += fabs((s - (t - part)) + (x[i] - part));
            p->s[i] = t;
        }
    }
    for (size_t i = 0; i < n; i++) lost += p->off[i];
    p->paired = p->lost = 0;
    return lost == 0;
}

/* Add e of other pairs to those of p, whose s has theirs. */
HK_INLINE void AT(add_low)(hk_pairs *restrict p, const f64 *restrict x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const f64 e = p->e[i], u = e + x[i], share = u - e;
        p->e[i] = u;
        p->off[i] += fabs((e - (u - share)) + (x[i] - share));
    }
}

/* Add any blocks but wide ones. */
HK_INLINE void AT(add_pairs)(hk_pairs *p, const u8 *const *block, int k, size_t n) {
    f64 s[HK_EXACT_BLOCK], e[HK_EXACT_BLOCK];
    int paired;
    AT(get_pairs)(p->s, p->e, block[0], n, &paired);
    memset(p->off, 0, n * 8);
    for (int j = 1; j < k; j++) {
        AT(get_pairs)(s, e, block[j], n, &paired);
        AT(add_next)(p, s, n);
        if (paired) AT(add_low)(p, e, n);
    }
    AT(look_at)(p, n);
}

static void AT(fold_exact)(const hk_codec *c, void *out, const void *const *in, int k, size_t count, hk_dice dice) {
    (void)dice;
    const u8 *block[256];
    u8 *to = (u8 *)out;
    hk_pairs p;
    hk_wide all[HK_EXACT_BLOCK], more;
    for (int j = 0; j < k; j++) block[j] = (const u8 *)in[j];
    count *= hk_parts(c);
    for (size_t at = 0; at < count; at += HK_EXACT_BLOCK, to += c->nbytes) {
        const size_t n = count - at < HK_EXACT_BLOCK ? count - at : HK_EXACT_BLOCK;
        size_t next[256];
        u32 terms = 0;
        int narrow = 1;
        for (int j = 0; j < k; j++) { /* `to` may be one of them */
            const hk_exact_head head = hk_head_of(block[j]);
            next[j] = head.next;
            terms += head.terms;
            narrow &= head.kind != HK_IN_WORDS;
        }
        int done = narrow && AT(add_doubles)(&p, block, k, n);
        if (narrow && !done) {
            AT(add_pairs)(&p, block, k, n);
            done = !p.lost;
        }
        if (done)
            AT(put_pairs)(c, to, &p, n, terms);
        else {
            for (size_t i = 0; i < n; i++) {
                hk_wide_in(&all[i], c, block[0], n, i);
                for (int j = 1; j < k; j++) {
                    hk_wide_in(&more, c, block[j], n, i);
                    hk_wide_plus(&all[i], &more);
                }
            }
            hk_put_wide(c, to, all, n, terms);
        }
        for (int j = 0; j < k; j++) block[j] += next[j];
    }
}
