/* Modules and launches.  An image is the text "HKFAKE\n" and the module's key; its functions are run by an emulator,
 * the library that FAKE_CUDA_EMULATOR names, which exports
 *
 *   int emu_parameters(const char *kernel, size_t *sizes, int room);    how many parameters, and their sizes; -1: none
 *   int emu_loops(const char *kernel, unsigned grid, unsigned block, void **parameters);                     0: done
 *   int emu_launch(const char *kernel, unsigned grid, unsigned block, void **parameters, unsigned seed);
 *   void emu_set_open_world(int open);
 *
 * of which the last two may be missing.  A kernel whose threads meet makes emu_loops give MET, and is launched anew. */
#include "fake.h"

#include <sys/mman.h>

enum { MOST = 32, MET = 4, THREADS = 1024 };
struct CUmod_st { struct CUmod_st *next; char *key; int unloaded; };
struct CUfunc_st { struct CUfunc_st *next; struct CUmod_st *module; char *name; int n; size_t sizes[MOST]; };
struct launch { const struct CUfunc_st *function; unsigned grid, block; CUresult fault; void *at[MOST]; char room[]; };

static struct {
    void *library;
    int (*parameters)(const char *, size_t *, int);
    int (*loops)(const char *, unsigned, unsigned, void **);
    int (*launch)(const char *, unsigned, unsigned, void **, unsigned);
} emulator;
static struct CUmod_st *modules;
static struct CUfunc_st *functions;
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

static int open_emulator(void) {
    const char *path = getenv("FAKE_CUDA_EMULATOR");
    if (emulator.library) return 1;
    emulator.library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (emulator.library == NULL) return fprintf(stderr, "fake cuda: no emulator: %s\n", path ? dlerror() : ""), 0;
    *(void **)&emulator.parameters = dlsym(emulator.library, "emu_parameters");
    *(void **)&emulator.loops = dlsym(emulator.library, "emu_loops");
    *(void **)&emulator.launch = dlsym(emulator.library, "emu_launch");
    void (*open_world)(int);
    *(void **)&open_world = dlsym(emulator.library, "emu_set_open_world");
    if (open_world) open_world(1);
    if (emulator.parameters == NULL || emulator.loops == NULL) abort();
    return 1;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    ENTER(IN_CONTEXT);
    const size_t head = strlen("HKFAKE\n");
    if (strncmp(image, "HKFAKE\n", head) != 0) return leave(CUDA_ERROR_INVALID_IMAGE);
    if (!open_emulator()) return leave(CUDA_ERROR_NO_BINARY_FOR_GPU);
    struct CUmod_st *m = calloc(1, sizeof *m);
    m->key = strdup((const char *)image + head);
    m->next = modules;
    *module = modules = m;
    is.modules++;
    return leave(CUDA_SUCCESS);
}

static int is_loaded(CUmodule module) {
    for (struct CUmod_st *m = modules; m; m = m->next)
        if (m == module && !m->unloaded) return 1;
    misuse(&is.bad_handle, "a module is used that is not loaded");
    return 0;
}

static int is_function(CUfunction function) {
    for (const struct CUfunc_st *f = functions; f; f = f->next)
        if (f == function) return 1;
    misuse(&is.bad_handle, "a function is launched that is not there");
    return 0;
}

CUresult cuModuleUnload(CUmodule module) {
    ENTER(IN_CONTEXT);
    if (!is_loaded(module)) return leave(CUDA_ERROR_INVALID_HANDLE);
    settle(current());
    module->unloaded = 1;
    is.modules--;
    for (const struct CUfunc_st *f = functions; f; f = f->next) is.functions -= f->module == module;
    return leave(CUDA_SUCCESS);
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    ENTER(IN_CONTEXT);
    size_t sizes[MOST];
    if (!is_loaded(module)) return leave(CUDA_ERROR_INVALID_HANDLE);
    const int n = emulator.parameters(name, sizes, MOST);
    if (n < 0 || n > MOST) return leave(CUDA_ERROR_NOT_FOUND);
    struct CUfunc_st *f = calloc(1, sizeof *f);
    f->module = module, f->name = strdup(name), f->n = n;
    memcpy(f->sizes, sizes, sizeof sizes);
    f->next = functions;
    *function = functions = f;
    is.functions++;
    return leave(CUDA_SUCCESS);
}

/* ---- launches */

static void run(struct op *o) {
    struct launch *l = o->launch;
    if (l->fault) {
        die(l->fault);
        if (!o->captured) free(l);
        return;
    }
    pthread_mutex_lock(&one_at_a_time);
    pthread_mutex_lock(&lock);
    protect_all(PROT_READ | PROT_WRITE);
    const unsigned seed = (unsigned)is.seed;
    pthread_mutex_unlock(&lock);
    int code = emulator.loops(l->function->name, l->grid, l->block, l->at);
    if (code == MET && emulator.launch) code = emulator.launch(l->function->name, l->grid, l->block, l->at, seed);
    pthread_mutex_lock(&lock);
    protect_all(PROT_NONE);
    check_edges();
    pthread_mutex_unlock(&lock);
    pthread_mutex_unlock(&one_at_a_time);
    if (code) {
        fprintf(stderr, "fake cuda: the emulator says %d of %s\n", code, l->function->name);
        die(CUDA_ERROR_LAUNCH_FAILED);
    }
    if (!o->captured) free(l);
}

/* Whether a parameter, or what lies in one at a multiple of eight bytes, is an address that this device may not use. */
static CUresult fault_of(const char *bytes, size_t size, struct CUstream_st *s) {
    const struct CUctx_st *c = s->context;
    for (size_t i = 0; i + 8 <= size; i += 8) {
        CUdeviceptr word;
        memcpy(&word, bytes + i, 8);
        struct range *r = range_of(word);
        if (r == NULL || r->kind == HOST) continue;
        r->user = s, r->used = s->submitted;
        if (r->freed) {
            misuse(&is.use_after_free, "a kernel is given memory that was freed or closed");
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        if (r->kind != PEER && r->device != c->device && !(c->peers >> r->device & 1)) {
            misuse(&is.unreachable, "a kernel is given memory of a device without access to it");
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
    }
    return CUDA_SUCCESS;
}

static struct launch *copied(const struct CUfunc_st *f, void **parameters, struct CUstream_st *s) {
    size_t room = 0;
    for (int i = 0; i < f->n; i++) room += (f->sizes[i] + 15) / 16 * 16;
    struct launch *l = calloc(1, sizeof *l + room + 16);
    char *at = (char *)(((uintptr_t)l->room + 15) / 16 * 16);
    for (int i = 0; i < f->n; i++) {
        memcpy(l->at[i] = at, parameters[i], f->sizes[i]);
        const CUresult fault = fault_of(at, f->sizes[i], s);
        if (fault) l->fault = fault;
        at += (f->sizes[i] + 15) / 16 * 16;
    }
    l->function = f;
    return l;
}

CUresult cuLaunchKernel(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                        unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **parameters,
                        void **extra) {
    ENTER(IN_CONTEXT);
    (void)shared;
    struct CUstream_st *s = stream_of(stream);
    if (s == NULL || s->context != current()) return leave(CUDA_ERROR_INVALID_HANDLE);
    if (!is_function(function) || !is_loaded(function->module)) return leave(CUDA_ERROR_INVALID_HANDLE);
    if (gx == 0 || bx == 0 || bx > THREADS) return leave(CUDA_ERROR_INVALID_VALUE);
    if (parameters == NULL && function->n) return leave(CUDA_ERROR_INVALID_VALUE);
    if (gy != 1 || gz != 1 || by != 1 || bz != 1 || extra) return leave(CUDA_ERROR_NOT_SUPPORTED); /* as emulators go */
    struct op *o = submit(s, run);
    o->launch = copied(function, parameters, s);
    o->launch->grid = gx, o->launch->block = bx;
    is.launches++;
    return leave(CUDA_SUCCESS);
}
