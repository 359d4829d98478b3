/* The short path, for who counts its instructions: short_path PARTS N.  PARTS & 1: a rank sends itself 8 bytes, N times: a line
 * is written, found, read and given back.  PARTS & 2: N short calls are recorded. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "system/record.h"
#define hk_ring hk_shm_ring /* record.h has another one */
#include "transports/shm/receive.h"
#include "transports/shm/send.h"
#undef hk_ring

int main(int argc, char **argv) {
    static hk_shm_ring ring;
    static uint32_t bell[2];
    static hk_record records[1024];
    static char head[sizeof(uint64_t) * 8];
    static hk_producer p = {.base.ops = &hk_producer_ops, .ring = &ring, .peer_bell = bell};
    static hk_consumer c = {.base.ops = &hk_consumer_ops, .ring = &ring, .peer_bell = bell};
    static hk_writer w = {.records = records, .ring = (void *)head, .mask = sizeof records - 1};
    const int parts = argc > 2 ? atoi(argv[1]) : 3, n = argc > 2 ? atoi(argv[2]) : 1, nobody = -1;
    const uint32_t named[2] = {1, 2};
    const hk_call call = {.tag = 5};
    char x[8] = "1234567", y[8] = "";
    hk_view v;
    c.window_fd = &nobody;
    for (int i = 0; i < n; i++) {
        if (parts & 1) {
            if (p.base.ops->send(&p.base, &call, 8, 0, x, 8) != 8 || c.base.ops->peek(&c.base, &call, &v, 8) != 1) return 1;
            memcpy(y, v.data, 8);
            c.base.ops->consume(&c.base, &call, 8, 1);
        }
        if (parts & 2) hk_put_call(&w, named, 8);
    }
    return parts & 1 && memcmp(x, y, 8) ? 2 : 0;
}
