/* The recorder: what a process's engines did last, in memory that another process can read while this one hangs.
 *
 * One file without a name (a memfd), or a file of a trace:
 *
 *     page 0          hk_recorder: facts of the process
 *     page 1          hk_ring[HK_RINGS]: where the ring of each engine lies, and how many bytes of records it ever got
 *     HK_ABOUT_AT     HK_ABOUT bytes for each ring: a line of JSON tells whose it is
 *     from texts_at   lines of JSON, appended only; line n is what a record's `what` = n means
 *     ring[i].at      records
 *
 * A ring has one writer: the thread that has claimed its engine, or, of a rank's own ring, whoever holds the GIL.  Who
 * reads copies the records, reads `written` again, and drops those that were overwritten meanwhile, and one more: the
 * next may be on its way.  (So of a full ring the oldest is never read.) */
#ifndef HK_RECORD_H
#define HK_RECORD_H

#include <stdint.h>
#include <string.h>

#include "system/atomics.h"
#include "system/clock.h"

enum {
    HK_RECORD_VERSION = 1,
    HK_RINGS = 64,
    HK_RING_ROOM = 1024,                /* records of a ring that is always on: 32 KiB */
    HK_HEADS_AT = 4096,
    HK_ABOUT_AT = 8192,
    HK_ABOUT = 1024,
    HK_TEXTS_AT = HK_ABOUT_AT + HK_RINGS * HK_ABOUT,
    HK_RINGS_AT = 1 << 20               /* texts have the room before it */
};

enum { HK_NOBODY = 0xFFFF };            /* no peer, no step, no lane */

/* What a record tells; which of its fields mean what is told in collectives/recording/records.py. */
enum hk_record_kind {
    HK_SAW_CALL = 1,        /* a call begins */
    HK_SAW_DONE = 2,        /* ... and ends well */
    HK_SAW_CALLED = 3,      /* it began and ended, and was not timed */
    HK_SAW_FAIL = 4,        /* it ends with an error */
    HK_SAW_WAIT_RECV = 5,   /* it waits for what a peer sends */
    HK_SAW_WAIT_SEND = 6,   /* it waits until a peer takes what is sent */
    HK_SAW_MOVED = 7,       /* something moves again */
    HK_SAW_MARK = 8,        /* comm.mark */
    HK_SAW_VERDICT = 9,     /* what the job's coordinator says of a failure */
    HK_SAW_LEFT = 10,       /* a rank has left the job */
    HK_SAW_LONG_WAIT = 11,  /* a wait was logged */
    HK_SAW_SUBMIT = 16,     /* from here on in traces only */
    HK_SAW_STEP = 17,
    HK_SAW_SEND_READY = 18,
    HK_SAW_SEND_END = 20,
    HK_SAW_RECV_READY = 21,
    HK_SAW_RECV_END = 23,
    HK_SAW_KERNEL = 24,
    HK_SAW_NO_CORE = 25,
    HK_SAW_LINK = 26
};

typedef struct hk_record {
    uint64_t ns;        /* CLOCK_MONOTONIC, in a trace nearly (clock.h); of what is not timed, the last time known */
    uint32_t seq;       /* the call's number in its engine */
    uint32_t what;      /* a line of the table */
    uint64_t bytes;
    uint16_t kind, peer, step, lane;
} hk_record;

typedef struct hk_ring {
    uint64_t at;        /* offset in the file */
    uint64_t written;   /* bytes, ever; released after each record */
    uint32_t room;      /* records: a power of two */
    uint32_t claimed;   /* 0: it is nobody's; else another number for each that it was */
    uint64_t unused[5];
} hk_ring;

typedef struct hk_recorder {
    char magic[8];      /* "hocketR", 0 */
    uint32_t version, pid;
    uint32_t rings;     /* that have been claimed so far */
    uint32_t refused;   /* engines that found no ring free */
    uint32_t traced;    /* is it a trace's? */
    uint32_t unnamed;   /* texts for which there was no room */
    uint64_t monotonic_ns, realtime_ns;     /* read together, at the start */
    int64_t timens_ns;  /* what the time namespace adds to CLOCK_MONOTONIC */
    uint64_t texts_at, texts_room;
    uint64_t texts;     /* bytes, so far; released after each line */
    char boot_id[40], host[64];
} hk_recorder;

/* The writer's end of a ring. */
typedef struct hk_writer {
    hk_record *records;
    hk_ring *ring;
    uint64_t n, mask;   /* bytes; the writer's own: what others scribble into the file moves nothing */
    uint64_t last;      /* the last time known, ns */
    uint32_t traces;    /* write what only traces have? */
    hk_clock clock;     /* ... whose time it tells */
} hk_writer;

/* `tail`: kind, and above it peer, step and lane, 16 bits each. */
static inline hk_record *hk_append(hk_writer *w, uint64_t ns, uint32_t seq, uint32_t what, uint64_t bytes, uint64_t tail) {
    uint64_t n = w->n;
    hk_record *r = (hk_record *)((char *)w->records + (n & w->mask));
    hk_fence_stores(); /* `written` is seen before what follows, which may be written over an old record */
    r->ns = ns;
    r->seq = seq;
    r->what = what;
    r->bytes = bytes;
    memcpy(&r->kind, &tail, sizeof tail);
    w->n = n + sizeof *r;
    hk_store64(&w->ring->written, n + sizeof *r);
    return r;
}

static inline void hk_put(hk_writer *w, uint64_t ns, uint32_t kind, uint32_t seq, uint32_t what, uint64_t bytes,
                          uint32_t peer, uint32_t step, uint32_t lane) {
    if (ns > w->last) w->last = ns;
    hk_append(w, ns, seq, what, bytes,
              (uint64_t)(uint16_t)lane << 48 | (uint64_t)(uint16_t)step << 32 | (uint32_t)(uint16_t)peer << 16 | kind);
}

/* A call begins: two of these in each short call are too many, so its end is told in the same record, which then is
 * HK_SAW_CALLED.  `named`: seq and what, side by side, as one store is cheaper than two. */
static inline hk_record *hk_put_call(hk_writer *w, const uint32_t named[2], uint64_t bytes) {
    uint64_t both;
    memcpy(&both, named, sizeof both);
    return hk_append(w, w->last, (uint32_t)both, (uint32_t)(both >> 32), bytes, ~(uint64_t)0xFFFF | HK_SAW_CALL);
}

#endif
