/* A fiber: a stack and a place to go on from.  ThreadSanitizer takes each for a thread of its own, if EMULATOR_TSAN. */
#pragma once

#include <functional>

#include <ucontext.h>

namespace emulator {

class Fiber {
  public:
    Fiber() = default;                            /* the one that is running */
    explicit Fiber(std::function<void()> body);   /* `body` must never return */
    ~Fiber();
    Fiber(const Fiber &) = delete;
    Fiber &operator=(const Fiber &) = delete;

    /* Leaves `this`, which is running, for `other`.  Orders nothing. */
    void switch_to(Fiber &other);
    /* Takes the OS thread that runs now for this one. */
    void adopt();

  private:
    static void enter();

    ucontext_t context{};
    void *stack = nullptr;
    void *tsan = nullptr;
    std::function<void()> body;
};

/* What orders memory between fibers: all before a release of `where` comes before what follows an acquire. */
void order_release(void *where);
void order_acquire(void *where);

} // namespace emulator
