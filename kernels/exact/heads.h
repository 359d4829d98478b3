/* Heads of blocks of accumulators (accumulators.h): what follows one, how blocks are sent, and what is believed of one that
 * came.  sums.h comes before. */
#ifndef HOCKET_KERNELS_HEADS_H
#define HOCKET_KERNELS_HEADS_H

enum { HK_IN_FLOATS = 1, HK_IN_DOUBLES, HK_IN_PAIRS, HK_IN_WORDS, HK_IN_TERMS };
enum { HK_MOST_TERMS = 32 };

/* The head of a block of accumulators. */
typedef struct {
    u8 kind, first, words; /* HK_IN_WORDS: which words of each wide number follow; before them a byte of flags each.
                            * HK_IN_TERMS: the bytes of a term, 4 or 8, and how many vectors of them follow */
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
        : head.kind == HK_IN_WORDS ? 1 + 8 * (size_t)head.words : (size_t)head.first * head.words;
    return sizeof head + head.count * each;
}

/* Have so many terms of each accumulator room in a block? */
HK_INLINE int hk_terms_fit(const hk_codec *c, size_t terms, size_t width) {
    return terms <= HK_MOST_TERMS && sizeof(hk_exact_head) + HK_EXACT_BLOCK * terms * width <= c->nbytes;
}

/* The vectors of floats or doubles whose sums a block's accumulators are, and the bytes of each of these; 0: wide numbers. */
HK_INLINE size_t hk_vectors(hk_exact_head head, size_t *width) {
    *width = head.kind == HK_IN_TERMS ? head.first : head.kind == HK_IN_FLOATS ? 4 : 8;
    return head.kind == HK_IN_WORDS ? 0 : head.kind == HK_IN_TERMS ? head.words : head.kind == HK_IN_PAIRS ? 2 : 1;
}

/* Accumulator i of a block, as a wide number. */
static void hk_wide_in(hk_wide *a, const hk_codec *c, const u8 *block, size_t n, size_t i) {
    const hk_exact_head head = hk_head_of(block);
    const u8 *in = block + sizeof head;
    if (head.kind == HK_IN_WORDS)
        hk_wide_load(a, c, in + n + i * 8 * head.words, head.first, head.words, in[i]);
    else if (head.kind == HK_IN_TERMS) {
        hk_wide_clear(a, c->words, c->base);
        for (size_t j = 0; j < head.words; j++)
            hk_wide_add_double(a, head.first == 4 ? get_f32((const any_f32 *)in, j * n + i)
                                                  : get_f64((const any_f64 *)in, j * n + i));
    } else if (head.kind == HK_IN_FLOATS)
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
        const int terms = (head.first == 4 || head.first == 8) && head.words && hk_terms_fit(c, head.words, head.first);
        const int sized = head.kind == HK_IN_TERMS ? terms : head.first + head.words <= c->words;
        if (head.kind < HK_IN_FLOATS || head.kind > HK_IN_TERMS || head.count > HK_EXACT_BLOCK || !sized
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
