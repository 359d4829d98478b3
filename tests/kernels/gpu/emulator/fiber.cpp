#include "fiber.h"

#include <cstdlib>
#include <vector>

#include <sys/mman.h>

#ifdef EMULATOR_TSAN
#include <sanitizer/tsan_interface.h>
#define TSAN(call) call
#else
#define TSAN(call)
#endif

namespace emulator {

namespace {

constexpr size_t STACK = 64 << 10;

/* Stacks are used again: to map one costs more than to run most CUDA threads. */
std::vector<void *> &spare = *new std::vector<void *>; /* never taken down, as the scheduler's */
Fiber *entering;

void *take_stack() {
    if (spare.empty()) {
        void *stack = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (stack == MAP_FAILED)
            abort();
        return stack;
    }
    void *stack = spare.back();
    spare.pop_back();
    return stack;
}

} // namespace

Fiber::Fiber(std::function<void()> body) : stack(take_stack()), body(std::move(body)) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = STACK;
    context.uc_link = nullptr;
    makecontext(&context, enter, 0);
    TSAN(tsan = __tsan_create_fiber(0));
}

Fiber::~Fiber() {
    if (stack == nullptr)
        return;
    TSAN(__tsan_destroy_fiber(tsan));
    spare.push_back(stack);
}

void Fiber::adopt() {
    TSAN(tsan = __tsan_get_current_fiber());
}

void Fiber::enter() {
    entering->body();
    abort();
}

void Fiber::switch_to(Fiber &other) {
    if (&other == this)
        return;
    entering = &other;
    TSAN(__tsan_switch_to_fiber(other.tsan, __tsan_switch_to_fiber_no_sync));
    swapcontext(&context, &other.context);
}

void order_release([[maybe_unused]] void *where) {
    TSAN(__tsan_release(where));
}

void order_acquire([[maybe_unused]] void *where) {
    TSAN(__tsan_acquire(where));
}

} // namespace emulator
