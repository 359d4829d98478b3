/* Three kernels, for the tests of the stand-in itself. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

int emu_parameters(const char *kernel, size_t *sizes, int room) {
    (void)room;
    sizes[0] = sizes[1] = sizes[2] = 8;
    if (strcmp(kernel, "add") == 0 || strcmp(kernel, "total") == 0) return 3;
    if (strcmp(kernel, "beyond") == 0) return 2;
    return -1;
}

int emu_loops(const char *kernel, unsigned grid, unsigned block, void **parameters) {
    uint32_t *const out = *(uint32_t **)parameters[0];
    const uint64_t n = *(uint64_t *)parameters[strcmp(kernel, "beyond") ? 2 : 1];
    if (grid == 7) return 3; /* as if it had failed */
    for (uint64_t i = 0; i < n && i < (uint64_t)grid * block; i++) {
        if (strcmp(kernel, "add") == 0) out[i] += (*(const uint32_t **)parameters[1])[i];
        else if (strcmp(kernel, "total") == 0) out[0] += *(*(const uint32_t ***)parameters[1])[i]; /* pointers in memory */
        else out[n] = 0;
    }
    return 0;
}
