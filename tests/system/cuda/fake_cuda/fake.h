/* A stand-in for libcuda.so.1, for tests only: devices that are made of shared memory and threads.
 *
 * It does what the driver and a device do and our transport relies on, and checks what they check; what a device leaves
 * undefined is filled with rubbish, and what it forbids without noticing is counted as a misuse and said on stderr.
 *
 *   knobs.c     what a test sets and reads; how every call begins and ends
 *   devices.c   devices, contexts, the names of errors
 *   memory.c    allocations, of which the host sees only addresses
 *   ipc.c       memory and events of other processes
 *   streams.c   queues, each with a thread
 *   values.c    what they carry out: copies, fills, waiting for a word and writing one, calls of the host
 *   events.c    marks in them
 *   kernels.c   launches, by an emulator
 *
 * Compiled with OLD_DRIVER it is one that cannot wait for words.
 *
 * fake_set and fake_get change and tell the numbers below; FAKE_CUDA="devices=2,delay=50" sets them at the start.
 * FAKE_CUDA_DIR, where memory lies as files, must be set: without it there is no device.  Whoever made the folder
 * removes it, so that nothing stays behind a process that was killed.
 *
 * What a stream is given while it is `capturing` is kept, and fake_replay gives it to a stream, as often as it is called.
 *
 * What it does not have: time (nothing lasts as long as on a device, and no call but those that wait is slow), events in
 * captures, managed memory, memory that is mapped piece by piece, arrays, profiling, and a device's
 * weak order of memory: the thread sanitizer sees what is missing there.  While a kernel runs, the host's own accesses
 * to device memory are not noticed; a kernel's, beyond the page that follows an allocation, end the process. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "system/cuda/driver.h"

#pragma GCC visibility push(default)
#define DECLARE(name, arguments) CUresult name arguments;
HK_CUDA_FUNCTIONS(DECLARE)
HK_CUDA_OPTIONAL(DECLARE)
#undef DECLARE
long fake_get(const char *name);
int fake_set(const char *name, long value);
int fake_refuse(const char *function, long nth, int status);
CUdeviceptr fake_suballoc(size_t size);
CUresult fake_subfree(CUdeviceptr at);
void *fake_reach(CUdeviceptr at, CUstream stream);
int fake_replay(CUstream captured, CUstream stream);
#pragma GCC visibility pop

#define KNOBS(X) \
    X(devices) X(first_device) /* number 0 of this process is this one of the machine: CUDA_VISIBLE_DEVICES */ \
    X(peers)          /* devices reach each other's memory */ \
    X(version)        /* of the driver */ \
    X(room)           /* bytes that a process may allocate on a device */ \
    X(pool)           /* memory that is allocated from now on cannot be exported, as a pool's */ \
    X(reuse)          /* addresses that were freed are given out again, as CUDA does; else never */ \
    X(ipc) X(ipc_events) X(memops) X(mps) /* 0: not supported */ \
    X(lost_words)     /* 1: words that are written to other processes' memory do not arrive */ \
    X(capturing)      /* 1: every stream is; else the address of the one that is */ \
    X(delay)          /* microseconds at most before a stream carries out an operation */ \
    X(seed)           /* of those delays; 0: another in each process, for equal delays hide what is missing */ \
    X(fault_at)       /* so many operations from now, one faults ... */ \
    X(fault_status)   /* ... with this error, which then all calls give */ \
    X(refuse_sticky)  /* what fake_refuse refuses, all calls give from then on */ \
    X(dead)           /* the error that all calls give */
#define COUNTS(X) \
    X(contexts) X(allocations) X(bytes) X(pinned) X(ipc_maps) X(events) X(ipc_events_open) X(streams) X(modules) \
    X(functions)      /* all that are there */ \
    X(calls) X(operations) X(copies) X(copied) X(fills) X(launches) X(host_calls) X(records) X(event_waits) \
    X(value_waits) X(value_writes) X(exports) /* so far */ \
    X(waits)          /* of the host for a stream, an event or a device, so far */ \
    X(to_host)        /* bytes that left a device for the host, so far */ \
    X(double_free) X(use_after_free) X(freed_while_mapped) X(out_of_range) X(early_destroy) X(unreachable) \
    X(bad_handle)     /* of a kind ... */ \
    X(misuses)        /* ... and of all kinds */
#define MEMBER(name) long name;
struct numbers { KNOBS(MEMBER) COUNTS(MEMBER) };
#undef MEMBER
extern struct numbers is; /* under the lock */
extern pthread_mutex_t lock;
extern pthread_cond_t moved; /* an operation was carried out, or asked for */

enum { DEVICES = 16, FREE_CALL, INITIALISED, IN_CONTEXT };

/* Every call begins with ENTER, which takes the lock or returns, and ends with leave, which lets it go. */
CUresult enter(const char *function, int needs);
CUresult leave(CUresult code);
#define ENTER(needs) \
    const CUresult entered = enter(__func__, needs); \
    if (entered != CUDA_SUCCESS) return entered
void misuse(long *kind, const char *what);
void die(CUresult status); /* the lock may be held or not */
int dead(void);

extern _Thread_local int in_host_call;
extern const char *folder;
extern int my_pid;

struct CUctx_st { int device, alive; long retained, peers; struct CUstream_st *legacy; };
struct CUctx_st *current(void); /* NULL: none */
int physical(int device);
int ordinal(int physical); /* or -1 */
int reaches(int device, int other);

/* ---- memory */

enum { DEVICE, POOL, PEER, HOST };
struct range {
    CUdeviceptr at;
    size_t size, mapped;
    char *alias; /* where the stand-in itself reads and writes it */
    int kind, device, fd, freed;
    long opens;
    uint64_t number; /* of its file */
    struct CUctx_st *context;
    CUipcMemHandle handle;
    struct CUstream_st *user; /* where the latest kernel was launched that was given it ... */
    uint64_t used;            /* ... and its number there */
};
extern struct range **ranges;
extern size_t n_ranges;
struct range *range_of(CUdeviceptr at); /* that it lies in, freed or not; NULL: nothing of CUDA's */
struct range *new_range(size_t size, int kind, int fd);
void retire(struct range *r);
/* Where the stand-in reaches `size` bytes; NULL if it may not. */
char *reach(CUdeviceptr at, size_t size);
void check_edges(void);
void protect_all(int how);
void settle(struct CUctx_st *c); /* wait until its streams have nothing more to do */
void drain(void);                /* all streams */

/* ---- streams */

struct op {
    struct op *next;
    uint64_t number;
    struct need { struct CUstream_st *stream; uint64_t upto; } *needs; /* what must have been carried out before */
    int n_needs;
    void (*run)(struct op *); /* without the lock; NULL: nothing to do */
    char *to, *from;
    size_t size;
    uint32_t value;
    unsigned flags;
    CUhostFn call;
    void *with;
    struct launch *launch;
    struct shared *shared;
    uint64_t generation;
    int slot, captured;
};
struct CUstream_st {
    struct CUstream_st *next;
    struct CUctx_st *context;
    unsigned flags, dice;
    uint64_t submitted, done;
    struct op *first, *last, *graph; /* the last: what was captured, the latest first */
    int running, destroyed;
};
struct CUstream_st *stream_of(CUstream handle); /* NULL: none */
struct op *submit(struct CUstream_st *s, void (*run)(struct op *));
void need(struct op *o, struct CUstream_st *s, uint64_t upto);
CUresult until_done(struct CUstream_st *s, uint64_t number); /* lock held */

/* ---- events */

enum { SLOTS = 256, WAITERS = 64 };
struct shared { /* an interprocess event, in a file */
    uint64_t submitted, done[SLOTS]; /* record n has been carried out if done[n % SLOTS] >= n */
    uint32_t destroyed;
    int32_t waiters[WAITERS]; /* processes that have a wait pending */
};
struct CUevent_st {
    struct CUevent_st *next;
    struct CUctx_st *context;
    unsigned flags;
    struct CUstream_st *stream; /* the latest record */
    uint64_t number;
    struct shared *shared;
    uint64_t file;
    int imported, dead;
};
struct CUevent_st *event_of(CUevent handle);
struct CUevent_st *new_event(unsigned flags);
int alive(int pid);
int open_file(const char *kind, int pid, uint64_t cookie, uint64_t number, int flags);
void remove_file(const char *kind, uint64_t number);
extern uint64_t my_cookie;
uint64_t next_number(void);

#endif
