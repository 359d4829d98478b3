/* A thread keeps its own descriptor, closes it when it ends, and a forked child does not read its parent's. */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "system/run_delay.h"

static int wrong(const char *rule, int holds) {
    if (!holds) printf("%s\n", rule);
    return !holds;
}

/* Is this descriptor the calling thread's file? */
static int is_ours(int fd) {
    char link[64], name[64], wanted[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    snprintf(wanted, sizeof wanted, "/proc/%d/task/%ld/schedstat", (int)getpid(), (long)syscall(SYS_gettid));
    const ssize_t n = readlink(link, name, sizeof name - 1);
    if (n < 0) return 0;
    name[n] = 0;
    return strcmp(name, wanted) == 0;
}

static void *in_thread(void *found) {
    const int fd = hk_delay_open();
    *(int *)found = is_ours(fd) ? fd : -1;
    return NULL;
}

int main(void) {
    int bad = 0, other = -1, status = 0;
    const int fd = hk_delay_open();
    bad += wrong("the file is the thread's", is_ours(fd));
    bad += wrong("it is kept", hk_delay_open() == fd);
    const uint64_t before = hk_run_delay();
    bad += wrong("the count only grows", hk_run_delay() >= before);

    pthread_t thread;
    pthread_create(&thread, NULL, in_thread, &other);
    pthread_join(thread, NULL);
    bad += wrong("another thread has its own", other >= 0 && other != fd);
    bad += wrong("and closes it", fcntl(other, F_GETFD) == -1);

    const pid_t child = fork();
    if (child == 0) _exit(is_ours(hk_delay_open()) ? 0 : 1);
    waitpid(child, &status, 0);
    bad += wrong("a child opens its own", status == 0);
    return bad != 0;
}
