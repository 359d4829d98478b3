/* Reductions over the memory of several devices: one shot and two shots.  flags.cuh says when they may be used.
 *
 * in[r] and scratch[r] are the windows of rank r as this device sees them; `out` is this rank's alone. */
#ifndef HOCKET_KERNELS_ALLREDUCE_CUH
#define HOCKET_KERNELS_ALLREDUCE_CUH

#include "flags.cuh"
#include "fold.cuh"

template <class F>
HK_DEVICE void hk_reduce_scatter(const hk_peers &peers, const hk_pointers &in, void *out, u64 first, u64 count) {
    if (!hk_meet(peers, 0))
        return;
    hk_fold<F>(in, first, out, count, peers.world);
    hk_meet(peers, 1); /* after it `in` may be overwritten */
}

/* Slice r, of whole vectors but for the last, is reduced by rank r into its scratch, and fetched from there by all.
 * No third meeting: `in` was read before the second, and `scratch` is written again after the first of the next call. */
template <class F>
HK_DEVICE void hk_allreduce(const hk_peers &peers, const hk_pointers &in, const hk_pointers &scratch, void *out,
                            u64 count) {
    const u64 size = sizeof(typename F::element), each = HK_VECTOR / size;
    const u64 world = peers.world, slice = ((count + world - 1) / world + each - 1) / each * each;
    if (!hk_meet(peers, 0))
        return;
    const u64 mine = slice * peers.rank;
    if (mine < count)
        hk_fold<F>(in, mine, scratch.at[peers.rank], count - mine < slice ? count - mine : slice, peers.world);
    if (!hk_meet(peers, 1))
        return;
    for (int j = 0; j < peers.world; j++) {
        const int rank = (peers.rank + j) % peers.world; /* not all at once from the same */
        const u64 at = slice * rank;
        if (at < count)
            hk_copy_tiles((u8 *)out + at * size, scratch.at[rank], (count - at < slice ? count - at : slice) * size);
    }
}

#endif
