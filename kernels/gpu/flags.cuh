/* Meetings of the devices of several ranks inside a running kernel.
 *
 * The blocks of all ranks must run at the same time, so a grid has at most 64: each rank has a device of its own, or CUDA's MPS
 * runs them side by side on one.
 * Block b of a rank meets block b of its peers, by flags that lie in the memory of the rank that waits for them:
 * flags[phase][block][peer], u32, zero at first.  An epoch is the number of a call, the same at all ranks, not 0 at
 * first, and grows by one from call to call, whatever kernel it is.  A peer is never more than one call ahead, so two
 * values of a flag say that it came, and epochs may wrap.
 *
 * What a rank brings is copied into its window first.  Calls of one parity use one window, those of the other another:
 * a peer may be reading the window of this call until it comes to the next one, and is through with it before this rank
 * can come to the one after that.  So no kernel meets at its end.
 *
 * Nothing waits for ever.  A thread gives up after limit_ns, or when host[0] is no longer zero; it writes what it waited
 * for into `status` and host[1], and its block returns without touching its result.  Later calls see `status`, signal
 * nothing and return at once.  The status is reason << 16 | phase << 8 | peer; of several that give up any may win. */
#ifndef HOCKET_KERNELS_FLAGS_CUH
#define HOCKET_KERNELS_FLAGS_CUH

#include "cuda.cuh"

enum { HK_FLAG_BLOCKS = 64, HK_PHASES = 2 };
enum { HK_TIMED_OUT = 1, HK_ABORTED = 2 };

/* flags[r] is the memory of rank r as this device sees it; `status` and `host`, which may lie in the host's memory, are
 * this rank's. */
struct hk_peers {
    u32 *flags[HK_RANKS];
    u32 *status;
    u32 *host;
    u64 limit_ns;
    u32 epoch;
    i32 rank;
    i32 world;
};

HK_DEVICE u32 *hk_flag(const hk_peers &peers, int owner, int phase, int peer) {
    return peers.flags[owner] + (phase * HK_FLAG_BLOCKS + blockIdx.x) * HK_RANKS + peer;
}

/* Whether `peer` arrived.  The clock and the host's word are looked at now and then. */
HK_DEVICE bool hk_wait(const hk_peers &peers, int phase, int peer) {
    const u32 *flag = hk_flag(peers, peers.rank, phase, peer);
    const u64 start = hk_time_ns();
    for (u32 polls = 1; hk_load_acquire(flag) - peers.epoch > 1; polls++) {
        if (polls % 128 == 0) {
            const u32 aborted = hk_load_acquire(peers.host);
            if (aborted || hk_time_ns() - start > peers.limit_ns) {
                const u32 status = (aborted ? HK_ABORTED : HK_TIMED_OUT) << 16 | (u32)phase << 8 | (u32)peer;
                hk_store_release(peers.status, status);
                hk_store_release(peers.host + 1, status);
                return false;
            }
        }
        hk_pause();
    }
    return true;
}

/* Tells this block's peers that it is here and waits for them.  True if all came: then everything they wrote before is
 * seen by every thread of this block.  False for all threads of the block or for none. */
HK_DEVICE bool hk_meet(const hk_peers &peers, int phase) {
    __syncthreads(); /* whatever this block did comes before its signal */
    bool lost = false;
    if ((i32)threadIdx.x < peers.world) {
        const int peer = threadIdx.x;
        lost = hk_load_acquire(peers.status) != 0;
        if (!lost) {
            hk_store_release(hk_flag(peers, peer, phase, peers.rank), peers.epoch);
            lost = !hk_wait(peers, phase, peer);
        }
    }
    return !__syncthreads_or(lost);
}

#endif
