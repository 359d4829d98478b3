/* What a running CUDA thread may ask of the scheduler.  Kernels see this through dialect.h. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace emulator {

struct Index {
    unsigned x = 0;
};

/* Where the running thread is. */
struct Place {
    Index thread, block, threads, blocks;
};

extern Place *place;

/* Thrown out of a kernel in emu_loops, whose threads cannot wait. */
struct Met {};

/* __syncthreads_or; with its own share of the condition. */
bool meet_block(bool condition);

/* __syncwarp. */
void meet_warp();

/* The memory of this block, of so many bytes. */
void *shared(size_t bytes);

/* __shfl_xor_sync of all the threads of this warp. */
uint64_t exchange(uint64_t value, int distance);

/* The turn of others. */
void pause();

/* Something was done that others may wait for. */
void progressed();

uint64_t time_ns();

/* The host's side: see emulator.h. */
void submit(unsigned grid, unsigned block, std::function<void()> body, int stream);
bool run(unsigned seed);
void loops(unsigned grid, unsigned block, const std::function<void()> &body);
void set_open_world(bool open);

} // namespace emulator
