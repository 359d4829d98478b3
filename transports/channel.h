/* The transport interface: one direction between two ranks of one communicator.
 *
 * A channel carries messages in order.  A message is a header (tag, length) and `length` bytes.  Neither side
 * ever blocks: a call that cannot proceed says HK_AGAIN, and the engine, which knows all the channels it waits
 * for, decides how to wait.  A transport fills in one table of functions and embeds `hk_channel` as the first
 * member of its own struct; the struct travels in a PyCapsule named HK_CAPSULE.  docs/transports.md: how to write one.
 *
 * Each function that a run calls is told of its call by an argument, `hk_call`, the same for all messages of the call.
 *
 * Threads: the channels of a communicator are used by one thread at a time, not always the same, with the GIL or without; other
 * communicators' run beside it.  So a function takes the GIL before it touches Python, and waits for no lock whose holder may
 * want the GIL.
 * Failure: once a run has failed, for whatever reason, nothing but `forget` is called on the channels of its communicator.
 *
 * Must not know: what a collective, an element or a schedule is. */
#ifndef HK_CHANNEL_H
#define HK_CHANNEL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HK_CAPSULE "hocket.channel.3"

enum {
    HK_AGAIN = -1, /* nothing could be done now */
    HK_LOST = -2,  /* the peer has closed or reset the connection */
    HK_FAULT = -3  /* the peer sent what the protocol does not allow, or the system refused; see `error` */
};

enum {
    HK_ONE_WAY = 0, /* some ranks send, others receive */
    HK_REDUCED = 1, /* all send and receive, and reduce what comes */
    HK_MOVED = 2,   /* all send and receive, and keep it as it is ... */
    /* What was found to be fastest for this call, or is tried (plans/weigh.h): */
    HK_READ = 3,    /* the receiver reads it in the sender's memory */
    HK_WRITTEN = 4, /* the sender writes it into the receiver's */
    HK_BOTH = 5,    /* each of the two does one half */
    HK_SLOTS = 6,   /* it is copied, by both */
    HK_TRAFFIC = 7
};

typedef struct hk_channel hk_channel;

/* What messages are part of: never NULL, and valid until the function returns. */
typedef struct hk_call {
    uint64_t tag; /* of all that it sends.  Of no use to a receiver: what stands at its head may be another call's */
    void *stream; /* for channels of GPU memory: the CUstream in whose order they use it; or NULL */
    int traffic;  /* a hint to senders: HK_ONE_WAY ... */
    uint32_t took; /* ns of the plan's call before, if that was timed: a sender may tell it; or 0 */
    int stays;    /* for senders that are `late`: this message stays where it lies until `settled` is asked without this ... */
    const char *changes; /* ... of what lies here, which is about to change; NULL: of all */
    size_t nbytes;
    char *keep;   /* of one `send`: who copies the bytes that it is offered, as they are, may copy them to here, too; or NULL.  Who
                     hands on a call with other bytes, or later, clears it ... */
    size_t *kept; /* ... and counts here how many it has copied so */
    int whole;    /* `settled` may wait until the receiver has all of it, also what was copied: the call is timed */
} hk_call;

/* What stands at the head of an incoming channel. */
typedef struct hk_view {
    uint64_t tag;     /* in the middle of a message, still its own ... */
    uint64_t length;  /* ... and that of the whole message */
    const char *data; /* the next bytes of it that can be read in place, at any alignment; they stay until the next */
    size_t avail;     /* call on this channel, whatever is called on others meanwhile ... and how many they are */
    uint32_t took;    /* what its sender has told so; left as it is where none tells */
} hk_view;

typedef struct hk_channel_ops {
    /* Offer bytes [done, done + len) of a message of `length` bytes.  Returns how many were taken (0 is success
     * only for an empty message, whose `src` may be NULL), or HK_AGAIN, HK_LOST, HK_FAULT.  The first call (done == 0)
     * starts the message.  After HK_AGAIN the same call comes again, and no other message before this one has ended;
     * so a header may have gone ahead, if that is remembered.
     * A message of 4 KiB is taken, and settled, though the peer does not read (two ranks may send before they
     * receive), nor has opened its side; a sender whom nobody reads is stopped after a bounded number of bytes, and
     * of messages.  What was taken arrives, though the channels are closed next. */
    long (*send)(hk_channel *, const hk_call *, uint64_t length, uint64_t done, const void *src, size_t len);
    /* 1 when no byte taken by `send` still lies in the caller's memory (NULL: always so), 0 while some do, HK_LOST or
     * HK_FAULT when that will not change.  Asked when a message has been taken to its end, or in the middle (of what
     * was taken so far), again and again until it is not 0: often nothing else is called meanwhile.  Who is `late` is
     * asked with `stays` first, and once more without. */
    int (*settled)(hk_channel *, const hk_call *);
    /* Send one message to several peers with one write.  NULL where a transport cannot.
     * All or nothing; same results as `send`.  All are channels of one communicator, with this same function. */
    long (*multicast)(hk_channel *const *, int n, const hk_call *, uint64_t length, uint64_t done, const void *src,
                      size_t len);
    /* 1: a message has begun, view filled; or HK_AGAIN ...  Takes nothing, and may be asked any number of times.
     * `want` is the size of an element, at most 4096, and the same for a whole message (or 0: only the head matters).
     * `avail` may be less than `want` while more is to come; then as many lie together, unless the message ends before,
     * however its sender cut it.  (Without work, where `send` takes all that it is offered, or multiples of 64 KiB: what
     * is offered are whole elements, and no more than 64 KiB at a time where these would not divide it.)
     * HK_LOST is for when all that came before has been read. */
    int (*peek)(hk_channel *, const hk_call *, hk_view *, size_t want);
    /* Drop `len` bytes that were peeked; `end` closes the message: once for each, with its last bytes, or as (0, 1)
     * after an empty one and after one that `recv` took.  Returns 0; or HK_LOST, HK_FAULT: they are dropped all the
     * same, and it is not called again for them. */
    int (*consume)(hk_channel *, const hk_call *, size_t len, int end);
    /* Receive straight into the caller's memory; at most what is left of the message.  NULL: peek and copy.
     * Returns how many, never 0, or HK_AGAIN ... after which the same call comes again.  When its head has been peeked,
     * a message is taken by `recv` alone, or by `peek` and `consume` alone. */
    long (*recv)(hk_channel *, const hk_call *, void *dst, size_t len);
    /* A run over these channels has failed: when this returns, nothing reads or writes the caller's memory any more,
     * whatever was under way.  The channel need not carry anything after it.  NULL: nothing does between calls. */
    void (*forget)(hk_channel *);
} hk_channel_ops;

/* Waiting: by poll on the `fd`s, for `events`, or if that is 0 for POLLIN where it receives, POLLOUT where it sends
 * (ready must mean that the next call gets on); by futex on the `bell` if no channel has an fd; by looking every 50 us
 * if none has either. */
struct hk_channel {
    const hk_channel_ops *ops;
    int fd;          /* to poll on when idle, or -1; may be set later, from any thread */
    short events;    /* to poll for, or 0 */
    unsigned short late; /* 1: it may need what it has sent again, and heeds `stays`: it need not copy what stays */
    int error;       /* errno behind HK_LOST or HK_FAULT, or 0, */
    const char *words; /* ... and what happened, if that says more; or NULL */
    uint32_t *bell;  /* two words of this process, the same for all its channels: see hk_ring_bell in wait.h; or NULL */
};

/* For who receives from any channel (the engine, or a channel that stands on another): up to `room` bytes of the message
 * that has begun, of which `left` are left: 1 <= room <= left.  The last ones close it.  Returns how many, never
 * 0, or HK_AGAIN ... */
static inline long hk_receive_copied(hk_channel *ch, const hk_call *call, void *to, size_t room, uint64_t left) {
    hk_view v;
    int rc = ch->ops->peek(ch, call, &v, 1);
    if (rc != 1) return rc;
    if (v.avail == 0) return HK_AGAIN;
    const size_t n = v.avail < room ? v.avail : room;
    memcpy(to, v.data, n);
    rc = ch->ops->consume(ch, call, n, n == left);
    return rc < 0 ? rc : (long)n;
}

/* ... by `recv`, where there is one. */
static inline long hk_receive(hk_channel *ch, const hk_call *call, void *to, size_t room, uint64_t left) {
    if (ch->ops->recv == NULL) return hk_receive_copied(ch, call, to, room, left);
    const long n = ch->ops->recv(ch, call, to, room);
    if (n < 0 || (uint64_t)n != left) return n;
    const int rc = ch->ops->consume(ch, call, 0, 1);
    return rc < 0 ? rc : n;
}

#endif
