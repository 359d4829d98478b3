/* Module: one dtype and one op.  The reduction of k buffers on this device, and of the buffers of several devices.
 *
 * HK_DTYPE and HK_OP name it; HK_STORAGE, HK_NUMBER and HK_COMBINE say which words of elements.h it is made of (so
 * uint16 addition also serves int16; HK_COMBINE may be an expression of a user's), and HK_PARTS of how many such an
 * element consists (a complex sum: two).  May be included once for each pair. */
#include "allreduce.cuh"
#include "fold.cuh"

#define HK_FOLD HK_JOIN3(hk_folding, HK_OP, HK_DTYPE)

struct HK_FOLD {
    typedef HK_PASTE(any_, HK_STORAGE) element;
    typedef HK_NUMBER number;
    HK_INLINE number get(const element *p, u64 i) { return HK_PASTE(get_, HK_STORAGE)(p, i); }
    HK_INLINE void put(element *p, u64 i, number value) { HK_PASTE(put_, HK_STORAGE)(p, i, value); }
    HK_INLINE number combine(number a, number b) { return HK_COMBINE(a, b); }
};

/* out = in[0] op ... op in[k-1]; count elements; 1 <= k <= 8.  (k + 1) n bytes of memory traffic. */
HK_KERNEL(HK_JOIN3(hk_reduce, HK_OP, HK_DTYPE), HK_PARAM(hk_pointers) in, void *out, u64 count, i32 k) {
    hk_fold<HK_FOLD>(in, 0, out, count * HK_PARTS, k);
}

/* Every rank: out = the reduction of elements first .. first + count of all ranks' `in`.  With all of them at every
 * rank it is the one-shot allreduce.  Reads world * n bytes, all but one n from peers. */
HK_KERNEL(HK_JOIN3(hk_reduce_scatter, HK_OP, HK_DTYPE), HK_PARAM(hk_peers) peers, HK_PARAM(hk_pointers) in, void *out,
          u64 first, u64 count) {
    hk_reduce_scatter<HK_FOLD>(peers, in, out, first * HK_PARTS, count * HK_PARTS);
}

/* Every rank: out = the reduction of all ranks' `in`, in two shots by way of `scratch`.  Reads 2n bytes from peers. */
HK_KERNEL(HK_JOIN3(hk_allreduce, HK_OP, HK_DTYPE), HK_PARAM(hk_peers) peers, HK_PARAM(hk_pointers) in,
          HK_PARAM(hk_pointers) scratch, void *out, u64 count) {
    hk_allreduce<HK_FOLD>(peers, in, scratch, out, count * HK_PARTS);
}

#undef HK_FOLD
