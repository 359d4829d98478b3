/* Module: the reductions over several devices (shots.cuh) by one dtype and one op, which pair.cuh explains. */
#include "shots.cuh"
#define HK_FOLD HK_JOIN3(hk_meeting, HK_OP, HK_DTYPE)
#include "pair.cuh"

/* Every rank: out = the reduction of all ranks' x; count elements.  Reads world * n bytes, all but one n from peers. */
HK_KERNEL(HK_JOIN3(hk_one_shot, HK_OP, HK_DTYPE), HK_PARAM(hk_peers) peers, HK_PARAM(hk_pointers) in, const void *x,
          void *out, u64 count) {
    hk_one_shot<HK_FOLD>(peers, in, x, out, count * HK_PARTS);
}

/* The same in two shots by way of `scratch`.  Reads 2n bytes from peers. */
HK_KERNEL(HK_JOIN3(hk_two_shot, HK_OP, HK_DTYPE), HK_PARAM(hk_peers) peers, HK_PARAM(hk_pointers) in,
          HK_PARAM(hk_pointers) scratch, const void *x, void *out, u64 count) {
    hk_two_shot<HK_FOLD>(peers, in, scratch, x, out, count * HK_PARTS);
}

/* Rank r: out = the reduction of block r of all ranks' x; count elements of each block.  Reads n bytes from peers. */
HK_KERNEL(HK_JOIN3(hk_reduce_scatter, HK_OP, HK_DTYPE), HK_PARAM(hk_peers) peers, HK_PARAM(hk_pointers) in,
          const void *x, void *out, u64 count) {
    hk_reduce_scatter<HK_FOLD>(peers, in, x, out, count * HK_PARTS);
}

#undef HK_FOLD
