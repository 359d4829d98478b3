/* The shared-memory protocol: one producer (send.h), one consumer (receive.h), no locks.
 *
 * A ring is 64 lines of 64 bytes in the producer's window.  A line is one packet: a sequence number, the message's
 * tag, and either up to 48 bytes of payload or where in the producer's window they lie.  So a small message is
 * one cache line, written once and read once.
 *
 *   line i carries packet n with n % 64 == i; its `seq` becomes n + 1 (release) when the rest is written
 *   the consumer reads a line when `seq` says n + 1 (acquire), and says how many packets it has finished
 *   (`released`, release) in a line of its own
 *   the producer writes packet n when released >= n - 63, and reuses a slot when the packet that named it is
 *   released
 *
 * Slots: each ring has its own, cut one after the other from a circle of `slots_bytes`, so that a slow reader holds up
 * nobody else; the multicast slots of a rank are shared by all its rings: written once, named in one line per reader.
 * Both are taken from the window when they are first needed, and at first few: most ranks of a large job never talk to
 * each other, and many communicators make a few calls only.
 * The circle is larger than two cores' own caches: a line that the reader still has must be taken back from its core,
 * which costs three times what it costs from a cache that both share (docs/performance.md).
 * End: who will not read a ring any more says so in it (`gone`); a block all of whose readers are gone is free.
 * Bytes that already lie in the window (hocket.empty) are named where they are and not copied at all; so are long
 * ones in the producer's own memory, if the consumer may read that (process_vm_readv).  Not between threads: a call
 * that fails lets go of memory which a thread may be copying from; the system's copy would just end.
 * A producer that waits for such a packet has an idle core.  So the consumer may invite it to write, too
 * (process_vm_writev): the invitation says where, and what nobody has taken yet.  The producer takes from the front, the
 * consumer from the back, a share at a time.  Who is late, or is not there, leaves all to the other one.
 * Memory that the system lets nobody else read (a device's, secret memory) is found out by the consumer, which asks for
 * that packet by an invitation into its stage, a stage's worth at a time, whatever was offered.  From then on the producer
 * tries the ends of what it sends to that consumer before it names it.  The producer looks for invitations whenever it
 * waits, so a call must go on with all that it has sent until it is settled.
 *
 * The peer may scribble on the window: indices are masked, offsets and lengths are checked against the window on
 * every read, and read once.  Model-checked by ThreadSanitizer: tests/transports/shm/ring_stress.c. */
#ifndef HK_RING_H
#define HK_RING_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "transports/channel.h"
#include "transports/shm/fill.h"

enum {
    HK_LINES = 64,
    HK_INLINE = 48,
    HK_SLOT_BYTES = 65536, /* at most */
    HK_SLOT_ALIGN = 128,   /* lines are fetched in pairs */
    HK_SHARED_SLOTS = 32,  /* of a communicator that is used much; at first HK_FIRST_SHARED */
    HK_FIRST_SHARED = 8,
    HK_FIRST_CIRCLE = 4 * HK_SLOT_BYTES,
    HK_GROW_AFTER = 4, /* times round the first ones */
    HK_SMALL_BYTES = 2048, /* a message of up to so many takes one of these few slots, whose lines both cores have ... */
    HK_SMALL_SLOTS = 4,    /* ... behind the circle, if it is free: to fetch a line from further away costs more then */
    HK_REF = 1 << 30, /* the payload lies elsewhere in the window */
    HK_FAR = 1 << 29, /* ... or, with HK_REF, in the producer's own memory */
    HK_OFFERED = 1 << 28, /* the producer writes, if it is invited ... */
    HK_RATHER = 1 << 27,  /* ... and would rather do all of it */
    HK_FLAGS = HK_REF | HK_FAR | HK_OFFERED | HK_RATHER,
    HK_PACKET_MAX = 1 << 26,
    /* Shorter messages are copied wherever they lie, and so do not wait for their reader.  Above what the engine takes
     * for surely buffered (`eager` of its traits): two ranks that send before they receive would wait for ever. */
    HK_BY_REF_MIN = 16384 + 1,
    HK_FAR_PIECE_MIN = 4096,  /* a shorter piece of a long message is copied: a system call would cost more */
    /* Per system call, so that lanes take turns: of 4 MiB, pieces of 64 KiB took 1.3 to 1.6 times as long, of 1 MiB 1.0
     * (bench/results/shared_memory.md). */
    HK_FAR_AT_ONCE = 1 << 22,
    HK_STAGE = 1 << 18,       /* of far payload that is not read into place, at a time: it stays in the core's own cache */
    HK_SHARE = 4096,          /* an invitation counts in so many bytes ... */
    HK_PATIENCE = 200,        /* ... and a producer that would rather do all has so many looks' time to begin */
    HK_NO_MEMORY = -1         /* as a pid: of a peer whose memory cannot be read */
};

typedef struct hk_line {
    uint32_t seq;
    uint32_t len; /* of this packet; HK_REF, HK_FAR */
    uint64_t tag;
    union {
        char bytes[HK_INLINE];
        struct {
            uint64_t where;  /* offset in the producer's window, or HK_FAR: address */
            uint64_t length; /* of the whole message */
            uint32_t took;   /* hk_call's */
        } ref;
    } u;
} __attribute__((aligned(64))) hk_line;

/* What a consumer invites its producer to: to write the bytes of a packet.  They are counted in HK_SHARE. */
typedef struct hk_invitation {
    uint64_t where;   /* the packet's place in the consumer's memory, or HK_HERE and in its window; or HK_UNREADABLE, as it
                       * cannot read: where in the stage share `begin` belongs, less what lies before it.  It writes this ... */
    uint64_t left;    /* ... and then what nobody has taken yet (hk_left); both change it */
    uint32_t written; /* by the producer: so many are there, from the front ... */
    uint32_t refused; /* ... or the system did not let it: all that it has taken from this one on, less 1, is the consumer's */
} __attribute__((aligned(128))) hk_invitation;

/* In one word, as who takes must know of which packet: its number, plus 1; the first that is left; the one behind the last. */
typedef struct hk_left {
    uint32_t packet;
    uint16_t begin, end;
} hk_left;

static inline uint64_t hk_left_word(hk_left l) { return (uint64_t)l.packet << 32 | (uint64_t)l.end << 16 | l.begin; }

static inline hk_left hk_left_of(uint64_t word) {
    return (hk_left){(uint32_t)(word >> 32), (uint16_t)word, (uint16_t)(word >> 16)};
}

static inline uint32_t hk_shares(size_t bytes) { return (uint32_t)((bytes + HK_SHARE - 1) / HK_SHARE); }

/* How many shares one of the two takes at a time: at most half of a packet, so that each has one; or one of them has all. */
static inline uint32_t hk_share_of(uint32_t all, uint32_t rather) {
    const uint32_t most = HK_FAR_AT_ONCE / HK_SHARE, whole = rather ? all : (all + 1) / 2;
    return whole < most ? whole : most;
}

/* In the producer's window, one per reader. */
typedef struct hk_ring {
    hk_line line[HK_LINES];
    hk_invitation invitation;
    uint32_t released __attribute__((aligned(128))); /* written by the consumer only ... */
    uint32_t gone;                                   /* ... which sets this last */
    char pad[120];
} hk_ring;

#define HK_NEVER UINT64_MAX
#define HK_HERE ((uint64_t)1 << 63)
#define HK_UNREADABLE ((uint64_t)1 << 62)
#define HK_FORGET_NS 1000000000u

/* A communicator's block in the window: a ring for each rank. */
#define HK_RINGS_BYTES(size) ((size_t)(size) * sizeof(hk_ring))

/* The slots of one ring. */
#define HK_SLOTS_BYTES(circle) ((size_t)(circle) + HK_SMALL_SLOTS * HK_SMALL_BYTES)

typedef struct hk_producer hk_producer;
typedef struct hk_consumer hk_consumer;

/* Memory of the window for `taker`, as long as that lives.  NULL: there is none, and `why` says why, as long. */
typedef char *hk_take(void *taker, size_t nbytes, const char **why);

/* The multicast slots of a communicator, private to its rank. */
typedef struct hk_shared_slots {
    char *slot; /* `count` of HK_SLOT_BYTES, or NULL: not needed yet */
    uint32_t count, most; /* at most HK_SHARED_SLOTS, more than HK_SMALL_SLOTS */
    uint32_t next, next_small;
    uint32_t warm; /* from this `next` on a slot has been written before */
    hk_fill fill;
    int readers[HK_SHARED_SLOTS];               /* how many rings named the slot last time */
    hk_producer **reader[HK_SHARED_SLOTS];      /* which ... */
    uint32_t *until[HK_SHARED_SLOTS];           /* ... and the `released` that frees it */
} hk_shared_slots;

struct hk_producer {
    hk_channel base;
    hk_ring *ring;
    char *window; /* this rank's own */
    size_t window_bytes;
    int far;    /* the consumer may read this process's memory ... */
    uint64_t far_moved, far_reduced; /* ... and does so of messages of so many bytes that are moved, reduced; or HK_NEVER */
    uint32_t took; /* the call's that is under way */
    int self;   /* the pid of this process ... */
    int reader; /* ... and of the consumer, whose memory may be written; or HK_NO_MEMORY */
    hk_consumer *back; /* the channel from that rank, which knows its window */
    int tries;        /* a consumer could not read what was named: so try before another is */
    char *slots; /* the circle and the small slots, or NULL: not needed yet */
    uint32_t slots_bytes, slots_most; /* ... now, and when much has been sent: powers of two, at least 2 HK_SLOT_BYTES */
    hk_shared_slots *shared;
    hk_take *take;
    void *taker; /* what it takes memory for */
    uint32_t *peer_bell;
    uint32_t next;                /* packets written */
    uint32_t released;            /* as last seen */
    uint32_t ref_until;           /* `released` that gives the caller's memory back */
    hk_fill fill;
    uint64_t cut, given_back;     /* bytes of the circle, ever */
    uint32_t oldest, newest;      /* which of its slots are in use, in order: by index % HK_LINES ... */
    uint32_t free_at[HK_LINES];   /* ... `released` that gives each back ... */
    uint64_t end[HK_LINES];       /* ... and `cut` behind it */
};

/* The next packet's, if it is that small. */
static inline char *hk_small_slot(const hk_producer *p) {
    return p->slots + p->slots_bytes + (p->next % HK_SMALL_SLOTS) * HK_SMALL_BYTES;
}

struct hk_consumer {
    hk_channel base;
    hk_ring *ring;
    const char *window; /* the producer's, as mapped here */
    size_t window_bytes; /* as last seen: it grows */
    size_t window_reserved; /* the addresses kept for it */
    const int *window_fd; /* whose size it is, or -1: plain memory, or left, so it does not grow */
    int pid;       /* of the producer, whose memory may be read; or HK_NO_MEMORY */
    uint32_t *peer_bell;
    const hk_producer *reply; /* the channel to that rank (hk_fetch_for_reply); or NULL */
    uint32_t next;   /* packets finished */
    uint32_t taken;  /* bytes of the open packet already consumed */
    uint32_t packet; /* its length */
    uint32_t took;   /* what it tells: hk_call's */
    const char *data; /* its payload; NULL: none open */
    uint64_t tag, length;
    uint64_t remote;  /* where the payload of a far packet lies in the producer's memory, 0: not far */
    char *stage;      /* HK_STAGE from a page's begin on, for far payload that is not read into place at once */
    uint32_t fetched; /* bytes of the packet that were fetched; the last of them lie in the stage */
    uint32_t staged;  /* ... and where in the packet the stage begins */
    int offered;      /* the open packet's flags HK_OFFERED, HK_RATHER */
    int unreadable;   /* it cannot be read ... */
    uint32_t asked;   /* ... so its bytes up to here are written into the stage, if not 0 */
    int invited;      /* both copy it, ... */
    char *into;       /* ... here, where it belongs */
    uint32_t looks;   /* ... and has had so many looks' time to begin */
    const char *own;  /* this rank's window ... */
    size_t own_bytes; /* ... and the addresses kept for it */
};

/* Do these bytes lie in the producer's window?  Beyond its end is SIGBUS; it never shrinks (it is sealed).  It is asked
 * for its size only where a packet lies beyond what is known of it. */
static inline int hk_window_holds(hk_consumer *c, uint64_t where, uint64_t len) {
    struct stat file;
    if (where <= c->window_bytes && len <= c->window_bytes - where) return 1;
    const int fd = __atomic_load_n(c->window_fd, __ATOMIC_RELAXED); /* the window may be left meanwhile */
    if (fd < 0 || fstat(fd, &file) != 0) return 0;
    c->window_bytes = (size_t)file.st_size < c->window_reserved ? (size_t)file.st_size : c->window_reserved;
    return where <= c->window_bytes && len <= c->window_bytes - where;
}

#endif
