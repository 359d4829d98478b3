/* Memory of the callers that is registered with a device.  Its channels share it, on several threads: it has a lock. */
#ifndef HK_VERBS_PINS_H
#define HK_VERBS_PINS_H

#include <pthread.h>

#include "transports/verbs/ibverbs.h"
#include "transports/verbs/protocol.h"

typedef struct hk_pin {
    struct ibv_mr *mr; /* NULL: a free entry */
    char *at;
    size_t len;
    int uses;
    uint64_t age;
} hk_pin;

/* The caller's arrays that are registered: as long as they live (device.pyx takes care), or until others need the room. */
typedef struct hk_pins {
    pthread_mutex_t lock;
    hk_pin pin[HK_V_PINS];
    uint64_t clock;
} hk_pins;

/* The entry that holds these bytes, in use from now on; NULL: they are not registered. */
static inline hk_pin *hk_pins_use(hk_pins *p, const char *at, size_t len) {
    hk_pin *found = NULL;
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < HK_V_PINS && found == NULL; i++) {
        hk_pin *e = &p->pin[i];
        if (e->mr && at >= e->at && len <= e->len && (size_t)(at - e->at) <= e->len - len) found = e;
    }
    if (found) {
        found->uses++;
        found->age = ++p->clock;
    }
    pthread_mutex_unlock(&p->lock);
    return found;
}

/* Take the registration out of the cache, if nobody uses it (or `anyway`: its memory goes): to deregister it. */
static inline struct ibv_mr *hk_pins_take(hk_pins *p, int i, int anyway) {
    struct ibv_mr *mr = NULL;
    pthread_mutex_lock(&p->lock);
    if (p->pin[i].uses == 0 || anyway) {
        mr = p->pin[i].mr;
        p->pin[i].mr = NULL;
    }
    pthread_mutex_unlock(&p->lock);
    return mr;
}

static inline void hk_pins_end_use(hk_pins *p, hk_pin *e) {
    pthread_mutex_lock(&p->lock);
    e->uses--;
    pthread_mutex_unlock(&p->lock);
}

#endif
