"""The exit code of a process that finds at its end that something went wrong.  Python's own atexit cannot change it."""

cdef extern from *:
    """
    #include <stdint.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <unistd.h>

    /* The last thing that runs: Python has ended, and so have all handlers that were registered later. */
    static void hk_leave(int status, void *code) {
        if (status == 0) {
            fflush(NULL);
            _exit((int)(intptr_t)code);
        }
    }

    #ifdef __GLIBC__
    static int hk_at_exit(int code) { return on_exit(hk_leave, (void *)(intptr_t)code); }
    #else /* no on_exit: the code that the program chose cannot be seen, and is taken for 0 */
    static int hk_code;
    static void hk_leave_with(void) { hk_leave(0, (void *)(intptr_t)hk_code); }
    static int hk_at_exit(int code) { hk_code = code; return atexit(hk_leave_with); }
    #endif
    """
    int hk_at_exit(int code) nogil


def at_least(int code):
    """End this process with `code`, if it would end with 0."""
    hk_at_exit(code)
