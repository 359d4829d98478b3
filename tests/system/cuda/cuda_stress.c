/* Many threads at the stand-in for the CUDA driver, for the sanitizers.  Says "ok", or what is wrong.
 * Arguments: rounds, the library, and "unordered" to leave out a wait, which the thread sanitizer must notice. */
#include "system/cuda/driver.h"

#include <pthread.h>
#include <stdlib.h>

enum { THREADS = 4, WORDS = 3000 };
static hk_cuda cuda;
static CUcontext context;
static int rounds, unordered;

static void must(CUresult status, const char *what) {
    if (status == CUDA_SUCCESS) return;
    const char *name = "?";
    cuda.cuGetErrorName(status, &name);
    printf("%s: %s\n", what, name);
    exit(1);
}
#define MUST(call) must(cuda.call, #call)

/* Two streams add and copy by turns, ordered by an event and a word; then the host looks. */
static void *work(void *which) {
    CUdeviceptr from, to, word;
    CUstream a, b;
    CUevent filled;
    CUmodule module;
    CUfunction add;
    unsigned *host;
    MUST(cuCtxPushCurrent_v2(context));
    MUST(cuModuleLoadData(&module, "HKFAKE\nsmall"));
    MUST(cuModuleGetFunction(&add, module, "add"));
    MUST(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&b, which ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
    MUST(cuEventCreate(&filled, CU_EVENT_DISABLE_TIMING | (which ? CU_EVENT_INTERPROCESS : 0)));
    MUST(cuMemHostAlloc((void **)&host, WORDS * 4, CU_MEMHOSTALLOC_PORTABLE));
    MUST(cuMemAlloc_v2(&word, 4));
    MUST(cuMemsetD8Async(word, 0, 4, a));
    MUST(cuStreamSynchronize(a));
    for (int i = 1; i <= rounds; i++) {
        uint64_t n = WORDS;
        MUST(cuMemAlloc_v2(&from, WORDS * 4));
        MUST(cuMemAlloc_v2(&to, WORDS * 4));
        MUST(cuMemsetD8Async(from, (unsigned char)i, WORDS * 4, a));
        MUST(cuEventRecord(filled, a));
        if (!unordered) MUST(cuStreamWaitEvent(b, filled, 0));
        MUST(cuMemcpyAsync(to, from, WORDS * 4, b));
        MUST(cuLaunchKernel(add, 50, 1, 1, 64, 1, 1, 0, b, (void *[]){&to, &from, &n}, NULL));
        MUST(cuStreamWriteValue32_v2(b, word, (cuuint32_t)i, 0));
        MUST(cuStreamWaitValue32_v2(a, word, (cuuint32_t)i, CU_STREAM_WAIT_VALUE_GEQ));
        MUST(cuMemcpyAsync((CUdeviceptr)(uintptr_t)host, to, WORDS * 4, a));
        MUST(cuStreamSynchronize(a));
        const unsigned one = (unsigned)(i & 0xff) * 0x01010101u;
        for (int k = 0; k < WORDS; k++)
            if (host[k] != 2 * one) must(CUDA_ERROR_UNKNOWN, "the sum");
        MUST(cuMemFree_v2(from));
        MUST(cuMemFree_v2(to));
    }
    MUST(cuMemFree_v2(word));
    MUST(cuMemFreeHost(host));
    MUST(cuEventDestroy_v2(filled));
    MUST(cuStreamDestroy_v2(a));
    MUST(cuStreamDestroy_v2(b));
    MUST(cuModuleUnload(module));
    return NULL;
}

int main(int argc, char **argv) {
    char why[256];
    pthread_t threads[THREADS];
    if (hk_cuda_open(&cuda, argc > 2 ? argv[2] : "libcuda.so.1", why, sizeof why) != 0) {
        printf("%s\n", why);
        return 1;
    }
    if (cuda.cuStreamWaitValue32_v2 == NULL) {
        printf("no waiting for words\n");
        return 0;
    }
    rounds = argc > 1 ? atoi(argv[1]) : 1;
    unordered = argc > 3;
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    for (size_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)(i % 2));
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    MUST(cuDevicePrimaryCtxRelease_v2(0));
    long (*get)(const char *);
    *(void **)&get = dlsym(cuda.library, "fake_get");
    if (get("misuses") || get("allocations") || get("streams")) return printf("something is left\n"), 1;
    printf("ok\n");
    return 0;
}
