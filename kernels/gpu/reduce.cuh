/* Module: the reduction of k buffers by one dtype and one op, which pair.cuh explains. */
#define HK_FOLD HK_JOIN3(hk_folding, HK_OP, HK_DTYPE)
#include "pair.cuh"

/* out = in[0] op ... op in[k-1]; count elements; 1 <= k <= 8.  (k + 1) n bytes of memory traffic. */
HK_KERNEL(HK_JOIN3(hk_reduce, HK_OP, HK_DTYPE), HK_PARAM(hk_pointers) in, void *out, u64 count, i32 k) {
    hk_fold<HK_FOLD>(in, 0, out, count * HK_PARTS, k);
}

/* The same for 2 <= k <= 256. */
HK_KERNEL(HK_JOIN3(hk_many, HK_OP, HK_DTYPE), HK_PARAM(hk_ways) in, void *out, u64 count, i32 k) {
    hk_fold_many<HK_FOLD>(in, out, count * HK_PARTS, k);
}

#undef HK_FOLD
