/* Both ends of a pair: how they are made, and what happens to waiting streams when the peer is gone. */
#ifndef HK_CUDA_IPC_PAIR_H
#define HK_CUDA_IPC_PAIR_H

#include "transports/cuda_ipc/reader.h"
#include "transports/cuda_ipc/writer.h"

/* Nothing more will come of this peer: let our streams go on that wait for it, in `stream`, which is not one of them.  0 or
 * -1.  A peer that is alive sets its marks still, so this may have to be said again. */
static inline int hk_c_release(hk_c_pair *p, void *stream) {
    int rc = 0;
    for (int i = 0; i < HK_C_ALL && rc == 0; i++) {
        rc = hk_mark_release(&p->peer_ready[i], p->common->device, stream);
        if (rc == 0) rc = hk_mark_release(&p->peer_done[i], p->common->device, stream);
    }
    return rc;
}

/* Put the two ends on their host channels; their waiting is that of these. */
static inline void hk_c_open(hk_c_pair *p, hk_c_common *common, int peer, hk_channel *out, hk_channel *in) {
    p->common = common;
    p->out = out;
    p->in = in;
    p->slots = common->window + (size_t)peer * HK_C_SLOTS * HK_C_SLOT_BYTES;
    p->tx.pair = p->rx.pair = p;
    p->tx.base = (hk_channel){.ops = &hk_c_tx_ops, .fd = in->fd, .events = in->fd < 0 ? 0 : 1 /* POLLIN */, .bell = in->bell};
    p->rx.base = (hk_channel){.ops = &hk_c_rx_ops, .fd = in->fd, .bell = in->bell};
    common->pair[peer] = p;
}

#endif
