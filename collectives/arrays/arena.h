/* Blocks of a window (transports/shm/window.pyx) for arrays of NumPy's: taken, freed and taken again without Python.
 *
 * A block has 1 to 16 grains of 64 KiB, or of twice, four times ... as much: at most an eighth of it is lost.  Freed ones wait in lists,
 * by their size, the latest first, as its lines and pages are warm.  Beyond HK_KEPT bytes a freed block's pages go back to
 * the system, and its addresses wait.  An array begins 64 bytes after a page: NumPy's own begin 16 after one, and a copy
 * that goes 1 to 31 bytes behind in their pages is slow on some CPUs (system/copy.h).
 * Nothing of this is kept in the window itself, where peers could write over it. */
#ifndef HK_ARENA_H
#define HK_ARENA_H

#define NPY_TARGET_VERSION NPY_1_22_API_VERSION
#include <Python.h>
#include <numpy/arrayobject.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HK_GRAIN = 1 << 16, HK_HEAD = 64, HK_PAGE_BYTES = 4096, HK_CLASSES = 512, HK_ARENAS = 64 };
#define HK_KEPT ((size_t)1 << 28)

typedef struct hk_block {
    struct hk_block *next;
    char *at;
    int bare; /* its pages have gone back */
} hk_block;

/* One window's. */
typedef struct hk_arena {
    char *base;
    size_t room; /* addresses */
    int fd;      /* its own, of the window's memory */
    int open;    /* may it grow? */
    uint16_t *class_at; /* by page: of the block that begins there */
    hk_block *list[HK_CLASSES], *spare;
    size_t kept, used; /* bytes that wait in lists with their pages; that arrays have */
} hk_arena;

static hk_arena hk_arenas[HK_ARENAS];
static int hk_current = -1, hk_forked; /* where new arrays go, -1: nowhere */
static size_t hk_least, hk_ordinary; /* from how many bytes on arrays were asked for last; those that found no shared memory */
static pthread_mutex_t hk_arena_lock = PTHREAD_MUTEX_INITIALIZER;

/* The class of blocks for so many bytes, and how many those have. */
static inline int hk_class_of(size_t bytes, size_t *whole) {
    const size_t grains = (bytes + HK_HEAD + HK_GRAIN - 1) / HK_GRAIN;
    int twice = 0;
    while ((grains + ((size_t)1 << twice) - 1) >> twice > 16) twice++;
    const size_t units = (grains + ((size_t)1 << twice) - 1) >> twice;
    *whole = (units << twice) * HK_GRAIN;
    return twice * 17 + (int)units;
}

static inline size_t hk_class_bytes(int class) { return ((size_t)(class % 17) << (class / 17)) * HK_GRAIN; }

static inline hk_arena *hk_arena_of(const void *p) {
    for (int i = 0; i < HK_ARENAS; i++)
        if ((size_t)((const char *)p - hk_arenas[i].base) < hk_arenas[i].room) return &hk_arenas[i];
    return NULL;
}

static inline uint16_t *hk_class_at(hk_arena *a, const char *block) { return &a->class_at[(block - a->base) / HK_PAGE_BYTES]; }

/* A freed block of this class; NULL: none.  `zero`: are its bytes 0? */
static inline char *hk_arena_again(hk_arena *a, int class, int *zero) {
    pthread_mutex_lock(&hk_arena_lock);
    hk_block *b = a->list[class];
    char *at = NULL;
    if (b != NULL) {
        at = b->at;
        *zero = b->bare;
        if (b->bare && posix_fallocate(a->fd, at - a->base, (off_t)hk_class_bytes(class)) != 0) {
            at = NULL; /* memory is full: an error here, not SIGBUS later */
        } else {
            if (!b->bare) a->kept -= hk_class_bytes(class);
            a->used += hk_class_bytes(class);
            a->list[class] = b->next, b->next = a->spare, a->spare = b;
        }
    }
    pthread_mutex_unlock(&hk_arena_lock);
    return at;
}

/* A block that the window has given is an array's from now on. */
static inline void hk_arena_adopt(hk_arena *a, int class, char *at) {
    pthread_mutex_lock(&hk_arena_lock);
    *hk_class_at(a, at) = (uint16_t)class;
    a->used += hk_class_bytes(class);
    pthread_mutex_unlock(&hk_arena_lock);
}

static inline void hk_arena_free(hk_arena *a, char *at) {
    if (hk_forked) return; /* its parent's */
    pthread_mutex_lock(&hk_arena_lock);
    const int class = *hk_class_at(a, at);
    const size_t bytes = hk_class_bytes(class);
    hk_block *b = a->spare;
    a->used -= bytes;
    if (b != NULL) a->spare = b->next;
    else b = (hk_block *)malloc(sizeof *b);
    const int bare = b == NULL || !a->open || a->kept + bytes > HK_KEPT;
    if (bare) madvise(at, bytes, MADV_REMOVE);
    else a->kept += bytes;
    if (b != NULL) b->at = at, b->bare = bare, b->next = a->list[class], a->list[class] = b;
    pthread_mutex_unlock(&hk_arena_lock);
}

/* The window grows no more: what waits goes back to the system. */
static inline void hk_arena_close(hk_arena *a) {
    pthread_mutex_lock(&hk_arena_lock);
    a->open = 0;
    for (int c = 0; c < HK_CLASSES; c++)
        for (hk_block *b = a->list[c]; b != NULL; b = b->next)
            if (!b->bare) madvise(b->at, hk_class_bytes(c), MADV_REMOVE), b->bare = 1;
    a->kept = 0;
    pthread_mutex_unlock(&hk_arena_lock);
}

/* A child's arrays are its own: it sees the window as it was, and changes nothing of it. */
static void hk_arena_child(void) {
    hk_forked = 1;
    for (int i = 0; i < HK_ARENAS; i++)
        if (hk_arenas[i].room) mmap(hk_arenas[i].base, hk_arenas[i].room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE,
             hk_arenas[i].fd, 0);
    pthread_mutex_init(&hk_arena_lock, NULL);
}

static void hk_arena_before(void) { pthread_mutex_lock(&hk_arena_lock); }
static void hk_arena_parent(void) { pthread_mutex_unlock(&hk_arena_lock); }

static inline size_t hk_table_bytes(size_t room) { return room / HK_PAGE_BYTES * sizeof(uint16_t); }

/* Forget a closed one that no array uses.  Is it forgotten? */
static inline int hk_arena_drop(hk_arena *a) {
    if (a->room == 0 || a->open || a->used) return 0;
    for (int c = 0; c < HK_CLASSES; c++)
        for (hk_block *b = a->list[c], *next; b != NULL; b = next) next = b->next, free(b);
    for (hk_block *b = a->spare, *next; b != NULL; b = next) next = b->next, free(b);
    munmap(a->class_at, hk_table_bytes(a->room));
    close(a->fd);
    memset(a, 0, sizeof *a);
    return 1;
}

/* Begin an arena here.  0: there is no memory for it, or no descriptor. */
static inline int hk_arena_begin(int number, char *base, size_t room, int fd) {
    static int once;
    hk_arena *a = &hk_arenas[number];
    a->class_at = (uint16_t *)mmap(NULL, hk_table_bytes(room), PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (a->class_at == MAP_FAILED) return 0;
    a->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (a->fd < 0) {
        munmap(a->class_at, hk_table_bytes(room));
        return 0;
    }
    if (!once) once = pthread_atfork(hk_arena_before, hk_arena_parent, hk_arena_child) == 0;
    a->base = base, a->open = 1, a->room = room;
    hk_current = number;
    return 1;
}

/* --- the handler: NumPy's own for what is short, or finds no memory here */

static PyObject *hk_usual;
static PyDataMem_Handler *hk_own; /* NumPy's */
static char *(*hk_fresh)(int arena, size_t bytes); /* of the window, by Python; NULL: there is none */

/* `least`: the context of its handler, from so many bytes on. */
static void *hk_array(void *least, size_t bytes, int *zero) {
    const int number = hk_current;
    if (bytes < (size_t)least || hk_forked || number < 0 || !hk_arenas[number].open) return NULL;
    hk_arena *a = &hk_arenas[number];
    size_t whole;
    const int class = bytes < a->room ? hk_class_of(bytes, &whole) : HK_CLASSES;
    char *at = class < HK_CLASSES ? hk_arena_again(a, class, zero) : NULL;
    if (at == NULL && class < HK_CLASSES && (at = hk_fresh(number, whole)) != NULL) {
        hk_arena_adopt(a, class, at);
        *zero = 1;
    }
    if (at == NULL) __atomic_fetch_add(&hk_ordinary, 1, __ATOMIC_RELAXED);
    return at == NULL ? NULL : at + HK_HEAD;
}

static void *hk_array_malloc(void *ctx, size_t bytes) {
    int zero;
    void *p = hk_array(ctx, bytes, &zero);
    return p != NULL ? p : hk_own->allocator.malloc(hk_own->allocator.ctx, bytes);
}

static void *hk_array_calloc(void *ctx, size_t count, size_t each) {
    int zero;
    size_t bytes;
    void *p = __builtin_mul_overflow(count, each, &bytes) ? NULL : hk_array(ctx, bytes, &zero);
    if (p == NULL) return hk_own->allocator.calloc(hk_own->allocator.ctx, count, each);
    return zero ? p : memset(p, 0, bytes);
}

static void hk_array_free(void *ctx, void *p, size_t bytes) {
    hk_arena *a = p == NULL ? NULL : hk_arena_of(p);
    if (a != NULL) hk_arena_free(a, (char *)p - HK_HEAD);
    else hk_own->allocator.free(hk_own->allocator.ctx, p, bytes);
}

/* One in ordinary memory stays there, however long it becomes. */
static void *hk_array_realloc(void *ctx, void *p, size_t bytes) {
    hk_arena *a = p == NULL ? NULL : hk_arena_of(p);
    if (a == NULL) return hk_own->allocator.realloc(hk_own->allocator.ctx, p, bytes);
    const size_t had = hk_class_bytes(*hk_class_at(a, (char *)p - HK_HEAD)) - HK_HEAD;
    if (bytes <= had && bytes >= had / 2) return p;
    void *q = hk_array_malloc(ctx, bytes);
    if (q == NULL) return NULL;
    memcpy(q, p, bytes < had ? bytes : had);
    hk_array_free(ctx, p, had);
    return q;
}

static const PyDataMem_Handler hk_handler = {
    "hocket", 1, {NULL, hk_array_malloc, hk_array_calloc, hk_array_realloc, hk_array_free}};

static void hk_handler_gone(PyObject *capsule) { free(PyCapsule_GetPointer(capsule, "mem_handler")); }

/* NumPy's handler of this context becomes ours, for arrays from `least` bytes on; returns the one before.  Arrays keep
 * the handler that has made them. */
static PyObject *hk_handler_on(size_t least) {
    if (hk_own == NULL) {
        if (_import_array() < 0) return NULL;
        PyObject *before = PyDataMem_SetHandler(NULL); /* NumPy's own */
        if (before == NULL) return NULL;
        hk_usual = PyDataMem_GetHandler();
        Py_XDECREF(PyDataMem_SetHandler(before));
        Py_DECREF(before);
        if (hk_usual == NULL) return NULL;
        hk_own = (PyDataMem_Handler *)PyCapsule_GetPointer(hk_usual, "mem_handler");
        if (hk_own == NULL) return NULL;
    }
    PyDataMem_Handler *made = (PyDataMem_Handler *)malloc(sizeof *made);
    if (made == NULL) return PyErr_NoMemory();
    *made = hk_handler;
    made->allocator.ctx = (void *)least;
    PyObject *capsule = PyCapsule_New(made, "mem_handler", hk_handler_gone);
    if (capsule == NULL) {
        free(made);
        return NULL;
    }
    PyObject *before = PyDataMem_SetHandler(capsule);
    Py_DECREF(capsule);
    return before;
}

static int hk_handler_back(PyObject *before) {
    PyObject *ours = PyDataMem_SetHandler(before);
    Py_XDECREF(ours);
    return ours == NULL ? -1 : 0;
}

#endif
