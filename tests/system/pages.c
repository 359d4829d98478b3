/* A stand-in for a kernel whose pages are 64 KiB, to be preloaded: it says so, maps to multiples of it, and refuses what such a
 * kernel refuses, with a line on standard error. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 65536, POPULATE = 23 };

static int odd(const void *at) { return (uintptr_t)at % PAGE != 0; }

static int refused(const char *what) {
    fprintf(stderr, "a page of 64 KiB: %s is refused\n", what);
    errno = EINVAL;
    return -1;
}

long sysconf(int name) {
    static long (*real)(int);
    if (!real) real = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
    return name == _SC_PAGESIZE ? PAGE : real(name);
}

int getpagesize(void) { return PAGE; }

void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset) {
    static void *(*real)(void *, size_t, int, int, int, off_t);
    if (!real) real = (void *(*)(void *, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, "mmap");
    if (offset % PAGE || (flags & MAP_FIXED && odd(at))) return refused("mmap"), MAP_FAILED;
    if (flags & MAP_FIXED) return real(at, n, protection, flags, fd, offset);
    char *room = real(NULL, n + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return room;
    char *begin = room + (PAGE - (uintptr_t)room % PAGE) % PAGE;
    return real(begin, n, protection, flags | MAP_FIXED, fd, offset);
}

void *mmap64(void *at, size_t n, int protection, int flags, int fd, off_t offset) {
    return mmap(at, n, protection, flags, fd, offset);
}

int munmap(void *at, size_t n) {
    static int (*real)(void *, size_t);
    if (!real) real = (int (*)(void *, size_t))dlsym(RTLD_NEXT, "munmap");
    return odd(at) ? refused("munmap") : real(at, n);
}

int madvise(void *at, size_t n, int advice) {
    static int (*real)(void *, size_t, int);
    if (!real) real = (int (*)(void *, size_t, int))dlsym(RTLD_NEXT, "madvise");
    return odd(at) && advice == POPULATE ? refused("madvise") : real(at, n, advice);
}
