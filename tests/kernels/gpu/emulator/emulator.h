/* CUDA kernels on a CPU: the interface, in C, of the library that the kernels are linked into.
 *
 * A launch takes what cuLaunchKernel takes: a name, a grid, a block (one dimension each) and the addresses of the
 * arguments, which are copied at once.  Every CUDA thread is a fiber of the calling OS thread, in a seeded random
 * order.  One OS thread of a process may be in here at a time. */
#ifndef HOCKET_EMULATOR_H
#define HOCKET_EMULATOR_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    EMU_OK,
    EMU_UNKNOWN,  /* no kernel has this name */
    EMU_GEOMETRY, /* no block, no thread, or more than 1024 of them to a block */
    EMU_DEADLOCK, /* every thread waits, and none can end that: the launches are lost */
    EMU_BARRIER   /* emu_loops met a barrier, a shuffle or a wait */
};

/* How many parameters this kernel has, and the bytes of the first `room` of them; -1: there is no such kernel. */
int emu_parameters(const char *name, size_t *sizes, int room);

/* Queues a launch.  Those of one stream run one after the other, those of several at the same time. */
int emu_submit(const char *name, unsigned grid, unsigned block, void **params, int stream);

/* Runs all that was queued to its end. */
int emu_run(unsigned seed);

/* Both for a single launch. */
int emu_launch(const char *name, unsigned grid, unsigned block, void **params, unsigned seed);

/* The same without fibers, thread after thread at native speed, for a kernel whose threads never meet. */
int emu_loops(const char *name, unsigned grid, unsigned block, void **params);

/* Whether peers live in other processes.  0, at first: time passes with each turn of a waiting thread, a microsecond a
 * turn, and a deadlock is found.  1: time is the machine's, and a thread that waits for ever waits for ever. */
void emu_set_open_world(int open);

#ifdef __cplusplus
}
#endif
#endif
