/* Who runs next.  Never compiled with -fsanitize=thread: what it does must not order the kernels' accesses. */
#include "scheduler.h"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include <sched.h>
#include <time.h>

#include "fiber.h"

namespace emulator {

namespace {

constexpr unsigned WARP = 32;
constexpr size_t SHARED = 48 << 10; /* bytes of a block, as every GPU gives it */

struct Thread;
struct Launch;

/* Threads that wait for each other.  One that ends is no longer waited for. */
struct Barrier {
    unsigned expected = 0;
    bool condition = false, result = false;
    std::vector<Thread *> waiting;
};

struct Block {
    Barrier all;
    std::vector<Barrier> warps;
    std::vector<uint64_t> exchanged;
    std::vector<char> shared;
    Launch *launch = nullptr;
};

struct Thread {
    Place place;
    Block *block = nullptr;
    std::unique_ptr<Fiber> fiber;
};

struct Launch {
    unsigned grid, block;
    std::function<void()> body;
    int stream;
    std::vector<std::unique_ptr<Block>> blocks;
    std::vector<std::unique_ptr<Thread>> threads;
    unsigned live = 0;
};

/* The launches of one stream, the first of them running. */
struct Stream {
    std::deque<std::unique_ptr<Launch>> launches;
};

Fiber host;
Place outside;
/* Never taken down: a process may end while a stream's thread is at work, as with a real GPU. */
std::map<int, Stream> &streams = *new std::map<int, Stream>;
std::vector<std::unique_ptr<Launch>> &done = *new std::vector<std::unique_ptr<Launch>>;
/* Fibers add to it one by one, within what begin() reserved: ThreadSanitizer sees a memmove, and takes it for theirs. */
std::vector<Thread *> &ready = *new std::vector<Thread *>;
Thread *running; /* or none: the host */
std::mt19937 chance;
uint64_t idle, turns, threads_alive;
bool deadlock, open_world, looping;

Fiber &fiber_of(Thread *thread) {
    return thread ? *thread->fiber : host;
}

void go_to(Thread *next) {
    Thread *self = running;
    running = next;
    place = next ? &next->place : &outside;
    fiber_of(self).switch_to(fiber_of(next));
}

Thread *pick() {
    return ready.empty() ? nullptr : ready[chance() % ready.size()];
}

void unready(Thread *thread) {
    auto at = std::find(ready.begin(), ready.end(), thread);
    *at = ready.back();
    ready.pop_back();
}

void open_if_complete(Barrier &barrier, unsigned arrived) {
    if (arrived < barrier.expected)
        return;
    barrier.result = barrier.condition;
    barrier.condition = false;
    for (Thread *thread : barrier.waiting)
        ready.push_back(thread);
    barrier.waiting.clear();
    progressed();
}

bool wait_at(Barrier &barrier, bool condition) {
    if (looping)
        throw Met{};
    order_release(&barrier);
    barrier.condition |= condition;
    unsigned arrived = barrier.waiting.size() + 1;
    if (arrived < barrier.expected) {
        barrier.waiting.push_back(running);
        unready(running);
        go_to(pick());
    } else {
        open_if_complete(barrier, arrived);
    }
    order_acquire(&barrier);
    return barrier.result;
}

void leave(Barrier &barrier) {
    barrier.expected--;
    if (!barrier.waiting.empty())
        open_if_complete(barrier, barrier.waiting.size());
}

Barrier &warp_of(const Thread &thread) {
    return thread.block->warps[thread.place.thread.x / WARP];
}

/* The life of a CUDA thread. */
void live(Thread *self) {
    Launch &launch = *self->block->launch;
    order_acquire(&streams[launch.stream]);
    launch.body();
    leave(self->block->all);
    leave(warp_of(*self));
    order_release(&streams[launch.stream]);
    launch.live--;
    threads_alive--;
    progressed();
    unready(self);
    go_to(launch.live ? pick() : nullptr); /* the host starts what comes next */
}

std::unique_ptr<Block> new_block(Launch &launch) {
    auto block = std::make_unique<Block>();
    block->launch = &launch;
    block->all.expected = launch.block;
    block->all.waiting.reserve(launch.block);
    for (unsigned first = 0; first < launch.block; first += WARP) {
        block->warps.emplace_back();
        block->warps.back().expected = std::min(WARP, launch.block - first);
        block->warps.back().waiting.reserve(WARP);
    }
    block->exchanged.resize(block->warps.size() * WARP);
    block->shared.assign(SHARED, (char)0xA5);
    return block;
}

void begin(Launch &launch) {
    launch.live = launch.grid * launch.block;
    threads_alive += launch.live;
    ready.reserve(threads_alive);
    for (unsigned b = 0; b < launch.grid; b++) {
        launch.blocks.push_back(new_block(launch));
        for (unsigned t = 0; t < launch.block; t++) {
            launch.threads.push_back(std::make_unique<Thread>());
            Thread *thread = launch.threads.back().get();
            thread->place = {{t}, {b}, {launch.block}, {launch.grid}};
            thread->block = launch.blocks.back().get();
            thread->fiber = std::make_unique<Fiber>([thread] { live(thread); });
            ready.push_back(thread);
        }
    }
}

/* What is done is freed at the end of the run, once the host has waited for all: to wait for one stream before it
 * starts the fibers of another would order the two. */
void retire(Stream &stream) {
    done.push_back(std::move(stream.launches.front()));
    stream.launches.pop_front();
}

/* Ends what is done and begins what comes next; false when there is no more. */
bool advance() {
    bool busy = false;
    for (auto &[number, stream] : streams) {
        auto &launches = stream.launches;
        if (!launches.empty() && launches.front()->live == 0 && !launches.front()->threads.empty())
            retire(stream);
        if (!launches.empty() && launches.front()->threads.empty())
            begin(*launches.front());
        busy |= !launches.empty();
    }
    return busy;
}

} // namespace

Place *place = &outside;

bool meet_block(bool condition) {
    return wait_at(looping ? *std::make_unique<Barrier>() : running->block->all, condition);
}

void meet_warp() {
    if (looping)
        throw Met{};
    wait_at(warp_of(*running), false);
}

void *shared(size_t bytes) {
    if (looping)
        throw Met{};
    if (bytes > SHARED)
        abort();
    return running->block->shared.data();
}

uint64_t exchange(uint64_t value, int distance) {
    if (looping)
        throw Met{};
    Thread &self = *running;
    Block &block = *self.block;
    const unsigned lane = self.place.thread.x;
    block.exchanged[lane] = value;
    wait_at(warp_of(self), false);
    const uint64_t other = block.exchanged[lane ^ distance];
    wait_at(warp_of(self), false);
    return other;
}

void pause() {
    if (looping)
        throw Met{};
    turns++;
    if (open_world) {
        if (++idle % (4 * ready.size() + 1) == 0)
            sched_yield();
    } else if (++idle > 200000 + 1000 * ready.size()) {
        deadlock = true;
        go_to(nullptr);
        return;
    }
    go_to(pick());
}

void progressed() {
    idle = 0;
}

uint64_t time_ns() {
    if (!open_world)
        return 1000 * turns;
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

void submit(unsigned grid, unsigned block, std::function<void()> body, int stream) {
    auto launch = std::make_unique<Launch>();
    launch->grid = grid;
    launch->block = block;
    launch->body = std::move(body);
    launch->stream = stream;
    order_release(&streams[stream]);
    streams[stream].launches.push_back(std::move(launch));
}

bool run(unsigned seed) {
    chance.seed(seed);
    host.adopt();
    idle = 0;
    threads_alive = 0;
    deadlock = false;
    while (!deadlock && advance()) {
        deadlock = ready.empty();
        go_to(pick());
    }
    for (auto &[number, stream] : streams)
        order_acquire(&stream);
    ready.clear();
    for (auto &[number, stream] : streams)
        stream.launches.clear();
    done.clear();
    return !deadlock;
}

void loops(unsigned grid, unsigned block, const std::function<void()> &body) {
    Place here{{0}, {0}, {block}, {grid}};
    place = &here;
    looping = true;
    try {
        for (here.block.x = 0; here.block.x < grid; here.block.x++)
            for (here.thread.x = 0; here.thread.x < block; here.thread.x++)
                body();
    } catch (const Met &) {
        looping = false;
        place = &outside;
        throw;
    }
    looping = false;
    place = &outside;
}

void set_open_world(bool open) {
    open_world = open;
}

} // namespace emulator
