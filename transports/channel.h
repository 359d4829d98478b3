/* The transport interface: one direction between two ranks on one lane.
 *
 * A channel carries messages in order.  A message is a header (tag, length) and `length` bytes.  Neither side
 * ever blocks: a call that cannot proceed says HK_AGAIN, and the engine, which knows all the channels it waits
 * for, decides how to wait.  A transport fills in one table of functions and embeds `hk_channel` as the first
 * member of its own struct; the table and the struct travel in PyCapsules named HK_CAPSULE.
 *
 * Must not know: what a collective, an element or a schedule is. */
#ifndef HK_CHANNEL_H
#define HK_CHANNEL_H

#include <stddef.h>
#include <stdint.h>

#define HK_CAPSULE "hocket.channel.1"

enum {
    HK_AGAIN = -1, /* nothing could be done now */
    HK_LOST = -2,  /* the peer has closed or reset the connection */
    HK_FAULT = -3  /* the peer sent what the protocol does not allow, or the system refused; see `error` */
};

enum {
    HK_ONE_WAY = 0, /* some ranks send, others receive */
    HK_REDUCED = 1, /* all send and receive, and reduce what comes */
    HK_MOVED = 2    /* all send and receive, and keep it as it is */
};

typedef struct hk_channel hk_channel;

/* What stands at the head of an incoming channel. */
typedef struct hk_view {
    uint64_t tag;
    uint64_t length; /* of the whole message */
    const char *data; /* the next bytes of it that can be read in place ... */
    size_t avail;     /* ... and how many */
} hk_view;

typedef struct hk_channel_ops {
    /* Offer bytes [done, done + len) of a message of `length` bytes.  Returns how many were taken (0 is success
     * only for an empty message), or HK_AGAIN, HK_LOST, HK_FAULT.  The first call (done == 0) starts the message.
     * A message of 4 KiB is taken though the peer does not read (two ranks may send before they receive); a sender
     * whom nobody reads is stopped after a bounded number of bytes, and of messages. */
    long (*send)(hk_channel *, uint64_t tag, uint64_t length, uint64_t done, const void *src, size_t len);
    /* 1 when no byte taken by `send` still lies in the caller's memory (NULL: always so). */
    int (*settled)(hk_channel *);
    /* Send one message to several peers with one write.  NULL where the transport has no such road.
     * All or nothing; same results as `send`. */
    long (*multicast)(hk_channel *const *, int n, uint64_t tag, uint64_t length, uint64_t done, const void *src,
                      size_t len);
    /* 1: a message has begun, view filled (avail may still be less than `want`, which is at most 64); or HK_AGAIN ... */
    int (*peek)(hk_channel *, hk_view *, size_t want);
    /* Drop `len` bytes that were peeked; `end` closes the message. */
    void (*consume)(hk_channel *, size_t len, int end);
    /* Receive straight into the caller's memory; at most what is left of the message.  NULL: peek and copy. */
    long (*recv)(hk_channel *, void *dst, size_t len);
    /* A run over this channel has failed: when this returns, nothing reads or writes the caller's memory any more,
     * whatever was under way.  The channel need not carry anything after it.  NULL: nothing ever does outside of calls. */
    void (*forget)(hk_channel *);
} hk_channel_ops;

struct hk_channel {
    const hk_channel_ops *ops;
    int fd;          /* to poll on when idle, or -1 */
    int error;       /* errno behind HK_LOST or HK_FAULT, */
    const char *words; /* ... and what happened, if that says more; or NULL */
    uint32_t *bell;  /* the word this process sleeps on for this channel (futex), or NULL */
    int traffic;     /* a hint of the engine: what the messages of this call are part of */
};

#endif
