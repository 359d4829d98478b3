/* A call of another library that carries out a whole collective: what the last instruction of a plan may be.
 *
 * The ranks have met before it, so all of them are in the same call.  A transport fills in the table and embeds
 * `hk_library` as the first member of its own struct; it travels in a PyCapsule named HK_LIBRARY_CAPSULE.  One call at
 * a time.
 *
 * Must not know: what a plan is. */
#ifndef HK_LIBRARY_H
#define HK_LIBRARY_H

#define HK_LIBRARY_CAPSULE "hocket.library.1"

typedef struct hk_library hk_library;

struct hk_library {
    /* Do all of it, and wait as the library waits.  0 or HK_FAULT.  NULL: there is only `start`. */
    int (*call)(hk_library *, void *in, void *out);
    /* Begin it.  0 or HK_FAULT. */
    int (*start)(hk_library *, void *in, void *out);
    /* 1: what was begun has ended; 0: not yet; HK_FAULT. */
    int (*test)(hk_library *);
    char why[512]; /* of a fault, in the library's words */
};

#endif
