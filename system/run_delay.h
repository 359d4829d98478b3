/* How long the calling thread was ready to run and had no core, ns: the second number of its schedstat.
 *
 * To open that file takes longer than all the rest, so each thread keeps its descriptor, and closes it when it ends.  A
 * forked child has its parent's, which tells of the parent's thread: so the thread's number is kept beside it.  (Those of
 * the parent's other threads stay open in the child, as there is nobody to close them.) */
#ifndef HK_RUN_DELAY_H
#define HK_RUN_DELAY_H

#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct hk_delay_file {
    int fd;
    long thread;
} hk_delay_file;

static pthread_key_t hk_delay_key;
static pthread_once_t hk_delay_once = PTHREAD_ONCE_INIT;
static int hk_delay_has_key;

static void hk_delay_close(void *kept) {
    close(((hk_delay_file *)kept)->fd);
    free(kept);
}

static void hk_delay_begin(void) { hk_delay_has_key = pthread_key_create(&hk_delay_key, hk_delay_close) == 0; }

/* This thread's descriptor, or -1. */
static inline int hk_delay_open(void) {
    pthread_once(&hk_delay_once, hk_delay_begin);
    if (!hk_delay_has_key) return -1;
    const long thread = syscall(SYS_gettid);
    hk_delay_file *kept = (hk_delay_file *)pthread_getspecific(hk_delay_key);
    if (kept && kept->thread == thread) return kept->fd;
    const int fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    if (kept) {
        close(kept->fd);
    } else if ((kept = (hk_delay_file *)malloc(sizeof *kept)) == NULL || pthread_setspecific(hk_delay_key, kept) != 0) {
        free(kept);
        close(fd);
        return -1;
    }
    kept->fd = fd;
    kept->thread = thread;
    return fd;
}

/* 0 where the kernel does not tell. */
static uint64_t hk_run_delay(void) {
    char text[64] = "", *end;
    const int fd = hk_delay_open();
    if (fd < 0 || pread(fd, text, sizeof text - 1, 0) <= 0) return 0;
    strtoull(text, &end, 10); /* how long it had one */
    return strtoull(end, NULL, 10);
}

#endif
