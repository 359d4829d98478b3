/* A stand-in for libnvrtc.so.13, beside the one for the driver (fake_cuda): it compiles nothing, and its machine code is
 * the text that the stand-in driver takes for a module, whose kernels are in the emulator already. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct program { char image[256]; } program;

int nvrtcCreateProgram(program **p, const char *text, const char *name, int n, const char **headers, const char **names) {
    (void)n, (void)headers, (void)names;
    if (strstr(text, "HK_KERNEL") == NULL) return 4; /* that is no kernel of ours */
    *p = calloc(1, sizeof **p);
    snprintf((*p)->image, sizeof (*p)->image, "HKFAKE\n%s", name);
    return 0;
}
int nvrtcCompileProgram(program *p, int n, const char *const *options) {
    (void)p;
    for (int i = 0; i < n; i++)
        if (strncmp(options[i], "-arch=sm_", 9) == 0) return 0;
    return 5;
}
int nvrtcGetCUBINSize(program *p, size_t *size) { return *size = strlen(p->image) + 1, 0; }
int nvrtcGetCUBIN(program *p, char *to) { return strcpy(to, p->image), 0; }
int nvrtcGetProgramLogSize(program *p, size_t *size) { return (void)p, *size = 1, 0; }
int nvrtcGetProgramLog(program *p, char *to) { return (void)p, *to = 0, 0; }
int nvrtcDestroyProgram(program **p) { return free(*p), *p = NULL, 0; }
