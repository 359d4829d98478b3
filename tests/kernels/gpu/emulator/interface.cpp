/* The interface of emulator.h over registry and scheduler. */
#include "emulator.h"

#include "registry.h"
#include "scheduler.h"

namespace emulator {

std::map<std::string, Entry> &registry() {
    static auto &kernels = *new std::map<std::string, Entry>; /* never taken down, as the scheduler's */
    return kernels;
}

namespace {

int prepare(const char *name, unsigned grid, unsigned block, void **params, std::function<void()> &body) {
    auto found = registry().find(name);
    if (found == registry().end())
        return EMU_UNKNOWN;
    if (grid == 0 || block == 0 || block > 1024)
        return EMU_GEOMETRY;
    body = found->second.bind(params);
    return EMU_OK;
}

} // namespace
} // namespace emulator

int emu_parameters(const char *name, size_t *sizes, int room) {
    auto found = emulator::registry().find(name);
    if (found == emulator::registry().end())
        return -1;
    const int n = (int)found->second.sizes.size();
    for (int i = 0; i < n && i < room; i++)
        sizes[i] = found->second.sizes[(size_t)i];
    return n;
}

int emu_submit(const char *name, unsigned grid, unsigned block, void **params, int stream) {
    std::function<void()> body;
    if (int wrong = emulator::prepare(name, grid, block, params, body))
        return wrong;
    emulator::submit(grid, block, std::move(body), stream);
    return EMU_OK;
}

int emu_run(unsigned seed) {
    return emulator::run(seed) ? EMU_OK : EMU_DEADLOCK;
}

int emu_launch(const char *name, unsigned grid, unsigned block, void **params, unsigned seed) {
    int wrong = emu_submit(name, grid, block, params, 0);
    return wrong ? wrong : emu_run(seed);
}

int emu_loops(const char *name, unsigned grid, unsigned block, void **params) {
    std::function<void()> body;
    if (int wrong = emulator::prepare(name, grid, block, params, body))
        return wrong;
    try {
        emulator::loops(grid, block, body);
    } catch (const emulator::Met &) {
        return EMU_BARRIER;
    }
    return EMU_OK;
}

void emu_set_open_world(int open) {
    emulator::set_open_world(open != 0);
}
