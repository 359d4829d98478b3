/* Barrier and allgather over the memory of several devices.  flags.cuh says when they may be used. */
#ifndef HOCKET_KERNELS_GATHER_CUH
#define HOCKET_KERNELS_GATHER_CUH

#include "flags.cuh"
#include "tiles.cuh"

/* Returns once the kernels of all ranks have begun.  One block is enough. */
HK_KERNEL(hk_barrier, HK_PARAM(hk_peers) peers) {
    hk_meet(peers, 0);
}

/* Gives every rank `bytes` bytes of each rank's x, at out + rank * bytes, by way of `in`; all at any alignment. */
HK_KERNEL(hk_allgather, HK_PARAM(hk_peers) peers, HK_PARAM(hk_pointers) in, const void *x, void *out, u64 bytes) {
    hk_copy_tiles(in.at[peers.rank], x, bytes);
    if (!hk_meet(peers, 0))
        return;
    for (int j = 0; j < peers.world; j++) {
        const int rank = (peers.rank + j) % peers.world; /* so ranks do not all begin with the same peer */
        hk_copy_tiles((u8 *)out + bytes * rank, in.at[rank], bytes);
    }
}

#endif
