/* Blocks of accumulators: sums on their way, which add without an error in any order; once per level, as kernels/cpu/table.h.
 *
 * An element of the codec `exact` is a block of HK_EXACT_BLOCK accumulators: a head, then floats, doubles, pairs of doubles
 * (sums.h), the terms of each as they are, where these are few, or wide numbers (wide.h): as few bytes as its numbers need.
 * In memory there is room for the longest behind each block; on the wire there is none (`pack`).  A reader goes from block
 * to block by the heads.  heads.h comes before. */

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

/* Vector j of a block of n, as doubles; `pairs`: its second one ends a pair, where 0 stands for nothing. */
HK_INLINE void AT(load_vector)(f64 *restrict x, const u8 *in, size_t width, size_t j, size_t n, int pairs) {
    AT(load_doubles)(width == 4 ? HK_FLOAT32 : HK_FLOAT64, x, in + j * n * width, n);
    if (pairs && j)
        for (size_t i = 0; i < n; i++) x[i] = x[i] == 0 ? -0.0 : x[i];
}

/* The terms themselves as a block. */
static void AT(put_terms)(const hk_codec *c, u8 *out, const hk_terms *t, size_t at, size_t n) {
    const int real = hk_real(c);
    const size_t width = real == HK_FLOAT64 ? 8 : 4;
    const hk_exact_head head = {HK_IN_TERMS, (u8)width, (u8)t->k, (u8)n, (u32)c->nbytes, (u32)t->k};
    memcpy(out, &head, sizeof head);
    u8 *to = out + sizeof head;
    f32 f[HK_EXACT_BLOCK];
    for (size_t j = 0; j < t->k; j++, to += n * width) {
        if (real == HK_FLOAT64 || real == HK_FLOAT32) {
            memcpy(to, hk_term(t, j, at), n * width);
            continue;
        }
        if (real == HK_FLOAT16)
            AT(widen_f16)(f, hk_term(t, j, at), n, 1);
        else
            AT(widen_bf16)(f, hk_term(t, j, at), n, 1);
        memcpy(to, f, n * 4);
    }
}

/* The vectors of k blocks as those of one, which may be one of them: 1; 0 if there is no room, or wide numbers are among them. */
static int AT(join_terms)(const hk_codec *c, u8 *out, const u8 *const *block, int k, size_t n, u32 terms) {
    u8 room[HK_MOST_TERMS * HK_EXACT_BLOCK * 8];
    size_t width, most = 4, vectors = 0, used = 0;
    for (int j = 0; j < k; j++) {
        const size_t more = hk_vectors(hk_head_of(block[j]), &width);
        if (more == 0) return 0;
        vectors += more;
        most = width > most ? width : most;
    }
    if (!hk_terms_fit(c, vectors, most)) return 0;
    for (int j = 0; j < k; j++) {
        const hk_exact_head head = hk_head_of(block[j]);
        const size_t more = hk_vectors(head, &width);
        const u8 *in = block[j] + sizeof head;
        if (width == most && head.kind != HK_IN_PAIRS) {
            memcpy(room + used, in, more * n * width);
            used += more * n * width;
            continue;
        }
        f64 x[HK_EXACT_BLOCK];
        for (size_t i = 0; i < more; i++, used += n * 8) {
            AT(load_vector)(x, in, width, i, n, head.kind == HK_IN_PAIRS);
            memcpy(room + used, x, n * 8);
        }
    }
    const hk_exact_head head = {HK_IN_TERMS, (u8)most, (u8)vectors, (u8)n, (u32)c->nbytes, terms};
    memcpy(out, &head, sizeof head);
    memcpy(out + sizeof head, room, used);
    return 1;
}

static void AT(encode_exact)(const hk_codec *c, void *to, const void *from, size_t count, double factor, hk_dice dice) {
    const hk_mode mode = hk_mode_usual();
    (void)dice;
    const int real = hk_real(c);
    const hk_terms terms = {(const u8 *)from, c->stride, NULL, c->rows, hk_real_width(real)};
    u8 *out = (u8 *)to;
    hk_pairs p;
    hk_wide all[HK_EXACT_BLOCK];
    count *= hk_parts(c);
    for (size_t at = 0; at < count; at += HK_EXACT_BLOCK, out += c->nbytes) {
        const size_t n = count - at < HK_EXACT_BLOCK ? count - at : HK_EXACT_BLOCK;
        AT(add_terms)(c, &p, &terms, at, n, factor);
        if (!p.lost) {
            AT(put_pairs)(c, out, &p, n, (u32)terms.k);
            continue;
        }
        if (factor == 1 && hk_terms_fit(c, terms.k, real == HK_FLOAT64 ? 8 : 4)) {
            AT(put_terms)(c, out, &terms, at, n);
            continue;
        }
        for (size_t i = 0; i < n; i++)
            if (p.off[i] == 0)
                hk_wide_of(&all[i], c, p.s[i], p.e[i]);
            else
                hk_wide_terms(&all[i], c, &terms, at + i, factor);
        hk_put_wide(c, out, all, n, (u32)terms.k);
    }
    hk_mode_back(mode);
}

/* The pairs of a block; 0: it has terms, or wide numbers. */
HK_INLINE int AT(get_pairs)(f64 *restrict s, f64 *restrict e, const u8 *block, size_t n, int *paired) {
    const hk_exact_head head = hk_head_of(block);
    const u8 *in = block + sizeof head;
    *paired = head.kind == HK_IN_PAIRS;
    if (head.kind >= HK_IN_WORDS) return 0;
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

/* The sums of a block's terms; 0: it has wide numbers. */
HK_INLINE int AT(get_terms)(hk_pairs *p, const u8 *block, size_t n) {
    f64 x[HK_EXACT_BLOCK];
    size_t width;
    const size_t vectors = hk_vectors(hk_head_of(block), &width);
    for (size_t j = 0; j < vectors; j++) {
        AT(load_vector)(x, block + sizeof(hk_exact_head), width, j, n, 0);
        if (j)
            AT(add_next)(p, x, n);
        else
            AT(add_first)(p, x, n);
    }
    AT(look_at)(p, n);
    return vectors > 0;
}

static void AT(decode_exact)(const hk_codec *c, void *to, const void *from, size_t count, double factor) {
    const hk_mode mode = hk_mode_usual();
    (void)factor;
    const int real = hk_real(c);
    const size_t width = hk_real_width(real);
    const u8 *in = (const u8 *)from;
    u8 *out = (u8 *)to;
    hk_pairs p;
    hk_wide a;
    count *= hk_parts(c);
    for (size_t at = 0; at < count; at += HK_EXACT_BLOCK, in += hk_head_of(in).next) {
        const size_t n = count - at < HK_EXACT_BLOCK ? count - at : HK_EXACT_BLOCK;
        const u32 terms = hk_head_of(in).terms;
        const f64 divisor = c->divisor < 0 ? terms : c->divisor;
        if (terms == 0) { /* no rank has a row: 0, and for an average a NaN that no sum ends in */
            memset(out + at * width, c->divisor < 0 ? 0xff : 0, n * width);
            continue;
        }
        p.lost = 0;
        if (AT(get_pairs)(p.s, p.e, in, n, &p.paired) || AT(get_terms)(&p, in, n)) {
            AT(store_pairs)(c, divisor, out + at * width, &p, n);
            for (size_t i = 0; p.lost && i < n; i++) {
                f64 value;
                if (p.off[i] == 0) continue;
                if (divisor == 1 && hk_sure(real, p.s[i], p.e[i], p.off[i], &value)) {
                    hk_store_real(real, out, at + i, value);
                    continue;
                }
                hk_wide_in(&a, c, in, n, i);
                hk_store_wide(c, divisor, out, at + i, &a);
            }
        } else
            for (size_t i = 0; i < n; i++) {
                hk_wide_in(&a, c, in, n, i);
                hk_store_wide(c, divisor, out, at + i, &a);
            }
    }
    hk_mode_back(mode);
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
    const hk_mode mode = hk_mode_usual();
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
            narrow &= head.kind < HK_IN_WORDS;
        }
        int done = narrow && AT(add_doubles)(&p, block, k, n);
        if (narrow && !done) {
            AT(add_pairs)(&p, block, k, n);
            done = !p.lost;
        }
        if (done)
            AT(put_pairs)(c, to, &p, n, terms);
        else if (!AT(join_terms)(c, to, block, k, n, terms)) {
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
    hk_mode_back(mode);
}
