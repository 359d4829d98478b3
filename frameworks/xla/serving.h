/* What library.c, which XLA loads, and serving.pyx, which has Python, tell each other. */
#ifndef HK_XLA_SERVING_H
#define HK_XLA_SERVING_H

#include <stdint.h>

typedef uintptr_t word; /* every handle and every constant of the ABI */

struct hk_group {       /* what a communicator's handle points to; it is never freed */
    int rank, size;
    void *object;       /* a Group of serving.pyx */
    char broken[1024];  /* why it cannot be used; "": it can */
};

/* Each returns 0, or 1 with a text of at most 1,023 bytes in `said`.  Types and ops are places in tables of serving.pyx. */
struct hk_serving {
    int (*init)(char *said);
    int (*split)(struct hk_group *group, int color, int key, char *said);
    int (*allreduce)(struct hk_group *group, const void *send, void *recv, int64_t count, int type, int op, char *said);
    int (*allgather)(struct hk_group *group, const void *send, void *recv, int64_t count, int type, char *said);
    int (*reduce_scatter)(struct hk_group *group, const void *send, void *recv, int64_t count, int type, int op, char *said);
    int (*sendrecv)(struct hk_group *group, const void *data, int64_t n, int to, void *into, int64_t m, int from, char *said);
    int (*note)(struct hk_group *group, void *data, int64_t count, int peer, int receives, char *said);
    int (*wait)(struct hk_group *group, char *said);
};

#endif
