"""NumPy's arrays in memory that all local ranks have mapped: a memory handler of NumPy's (NEP 49) over this rank's window.

arena.h has the blocks, and says how they are freed and used again.  What the window does not give, as memory is full or it
has been closed, is ordinary memory: never an error.
"""

from libc.stdint cimport uintptr_t

from hocket.arguments import human
from hocket.transports.shm.window cimport Window


cdef extern from "collectives/arrays/arena.h" nogil:
    enum: HK_ARENAS
    struct hk_arena:
        char* base
        size_t room, kept, used
        bint open
    hk_arena* hk_arenas
    int hk_current
    size_t hk_least, hk_ordinary
    char* (*hk_fresh)(int arena, size_t nbytes) noexcept nogil
    bint hk_arena_drop(hk_arena*)
    bint hk_arena_begin(int number, char*, size_t, int fd)
    void hk_arena_close(hk_arena*)
    hk_arena* hk_arena_of(const void*)
    object hk_handler_on(size_t least) with gil
    int hk_handler_back(object) except -1 with gil

cdef list windows = [None] * HK_ARENAS      # by arena: kept while an array lies there
cdef str refused = ""                       # why a window gave no memory, the last time


cdef char* fresh(int arena, size_t nbytes) noexcept nogil:
    """Memory of the window's that no array has had; NULL: there is none."""
    global refused
    with gil:
        try:
            return (<Window>windows[arena]).base + <size_t>(<Window>windows[arena]).alloc(nbytes)
        except Exception as error:
            refused = str(error)
            return NULL


hk_fresh = fresh


def window_of(transports):
    """This rank's window, of the first of these transports that has one; None: none has."""
    for transport in transports:
        window = getattr(transport, "window", None)
        if isinstance(window, Window):
            return window
    return None


def begin(Window window, size_t least):
    """Arrays of this context that NumPy makes from now on lie in this window, from so many bytes on.

    `end` takes what it returns.
    """
    global hk_least, hk_ordinary, refused
    cdef int i
    if hk_current < 0 or windows[hk_current] is not window:
        closed(windows[hk_current] if hk_current >= 0 else None)
        for i in range(HK_ARENAS):
            if hk_arena_drop(&hk_arenas[i]):
                windows[i] = None
        refused, hk_ordinary = "", 0
        free = [i for i in range(HK_ARENAS) if windows[i] is None]
        if not free or not hk_arena_begin(free[0], window.base, window.reserved, window.fd):
            refused = "there are too many jobs whose arrays live on, or there is no memory or descriptor for them"
        else:
            windows[free[0]] = window
    hk_least = least
    return hk_handler_on(least)


def end(before):
    """NumPy's handler of this context is the one before again.  Arrays that were made stay where they are."""
    hk_handler_back(before)


def closed(window):
    """This window gives no more memory, and what no array has goes back to the system."""
    global hk_current
    if hk_current >= 0 and windows[hk_current] is window:
        hk_arena_close(&hk_arenas[hk_current])
        hk_current = -1


def holds(uintptr_t address):
    """Is this an address of such an array?"""
    return hk_arena_of(<void*>address) != NULL


def words(window):
    """The arrays in this window, in a sentence; "": nobody has asked for any."""
    cdef hk_arena* a
    if hk_current < 0 or windows[hk_current] is not window:
        return ""
    a = &hk_arenas[hk_current]
    text = f"arrays from {human(hk_least)} on lie in shared memory: {human(a.used)} in use, {human(a.kept)} kept"
    if hk_ordinary:
        text += f"; {hk_ordinary} are ordinary memory" + (f", the last because {refused}" if refused else "")
    return text
