/* Reductions over the memory of several devices: in one shot, in two, or one block for each rank.
 *
 * in[r] and scratch[r] are the windows of rank r as this device sees them; x and out are this rank's alone, and may be
 * the same.  flags.cuh says when they may be used, and why `in` is another window in the next call. */
#ifndef HOCKET_KERNELS_SHOTS_CUH
#define HOCKET_KERNELS_SHOTS_CUH

#include "flags.cuh"
#include "fold.cuh"

/* Everybody reads everything.  `in` holds count elements. */
template <class F>
HK_DEVICE void hk_one_shot(const hk_peers &peers, const hk_pointers &in, const void *x, void *out, u64 count) {
    hk_copy_tiles(in.at[peers.rank], x, count * sizeof(typename F::element));
    if (hk_meet(peers, 0))
        hk_fold<F>(in, 0, out, count, peers.world);
}

/* Slice r, of whole vectors but for the last, is reduced by rank r into its scratch, and fetched from there by all.
 * `scratch` is written again after the first meeting of the next call, when everybody has left this one. */
template <class F>
HK_DEVICE void hk_two_shot(const hk_peers &peers, const hk_pointers &in, const hk_pointers &scratch, const void *x,
                           void *out, u64 count) {
    const u64 size = sizeof(typename F::element), each = HK_VECTOR / size;
    const u64 world = peers.world, slice = ((count + world - 1) / world + each - 1) / each * each;
    for (u64 at = 0; at < count; at += slice) /* by slices: the block that copies a tile meets its readers */
        hk_copy_tiles((u8 *)in.at[peers.rank] + at * size, (const u8 *)x + at * size,
                      (count - at < slice ? count - at : slice) * size);
    if (!hk_meet(peers, 0))
        return;
    const u64 mine = slice * peers.rank;
    if (mine < count)
        hk_fold<F>(in, mine, scratch.at[peers.rank], count - mine < slice ? count - mine : slice, peers.world);
    if (!hk_meet(peers, 1))
        return;
    for (int j = 0; j < peers.world; j++) {
        const int rank = (peers.rank + j) % peers.world; /* so ranks do not all begin with the same peer */
        const u64 at = slice * rank;
        if (at < count)
            hk_copy_tiles((u8 *)out + at * size, scratch.at[rank], (count - at < slice ? count - at : slice) * size);
    }
}

/* Block r of every x, `count` elements, is reduced by rank r.  `in` holds world blocks of whole vectors. */
template <class F>
HK_DEVICE void hk_reduce_scatter(const hk_peers &peers, const hk_pointers &in, const void *x, void *out, u64 count) {
    const u64 size = sizeof(typename F::element), each = HK_VECTOR / size, block = (count + each - 1) / each * each;
    for (int rank = 0; rank < peers.world; rank++)
        hk_copy_tiles((u8 *)in.at[peers.rank] + block * rank * size, (const u8 *)x + count * rank * size,
                      count * size);
    if (hk_meet(peers, 0))
        hk_fold<F>(in, block * peers.rank, out, count, peers.world);
}

#endif
