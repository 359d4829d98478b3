/* Channels over named pipes: what a transport of another package is in C.  hocket_fifos.py opens the pipes.
 *
 * On the pipe: for each message its tag and length, 8 bytes each, then its bytes. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "transports/channel.h"

enum { STAGE = 65536 };

typedef struct {
    hk_channel base; /* first: the engine knows only this */
    int begun;       /* writer: the open message's head has been written */
    int met;         /* reader: something has come, so an empty pipe means that the peer closed it */
    int open;        /* reader: a message has begun */
    uint64_t tag, length, left;
    size_t head, tail;
    char stage[STAGE];
} fifo;

static long failed(fifo *f) {
    if (errno == EAGAIN || errno == EINTR) return HK_AGAIN;
    f->base.error = errno;
    return HK_LOST;
}

static long fifo_send(hk_channel *ch, const hk_call *call, uint64_t length, uint64_t done, const void *src, size_t len) {
    fifo *f = (fifo *)ch;
    if (done == 0 && !f->begun) {
        const uint64_t head[2] = {call->tag, length}; /* shorter than PIPE_BUF: written whole, or not at all */
        if (write(ch->fd, head, sizeof head) < 0) return failed(f);
        f->begun = 1;
    }
    const long n = len ? (long)write(ch->fd, src, len) : 0;
    if (n < 0) return failed(f);
    f->begun = done + (uint64_t)n < length;
    return n;
}

static int fill(fifo *f, size_t want) {
    if (f->tail - f->head < want) {
        memmove(f->stage, f->stage + f->head, f->tail - f->head);
        f->tail -= f->head;
        f->head = 0;
        const long n = read(f->base.fd, f->stage + f->tail, STAGE - f->tail);
        if (n < 0) return (int)failed(f);
        if (n == 0 && f->met) return HK_LOST; /* before the first byte the peer has only not opened it yet */
        f->met |= n > 0;
        f->tail += (size_t)n;
    }
    return f->tail - f->head >= want ? 1 : HK_AGAIN;
}

static int fifo_peek(hk_channel *ch, const hk_call *call, hk_view *v, size_t want) {
    fifo *f = (fifo *)ch;
    if (!f->open) {
        uint64_t head[2];
        const int got = fill(f, sizeof head);
        if (got != 1) return got;
        memcpy(head, f->stage + f->head, sizeof head);
        f->head += sizeof head;
        f->tag = head[0];
        f->length = f->left = head[1];
        f->open = 1;
    }
    if (want > f->left) want = (size_t)f->left;
    const int got = want ? fill(f, want) : 1;
    if (got != 1 && got != HK_AGAIN) return got;
    const size_t staged = f->tail - f->head;
    v->tag = f->tag;
    v->length = f->length;
    v->data = f->stage + f->head;
    v->avail = staged < f->left ? staged : (size_t)f->left;
    return 1;
}

static int fifo_consume(hk_channel *ch, const hk_call *call, size_t len, int end) {
    fifo *f = (fifo *)ch;
    f->head += len;
    f->left -= len;
    if (end) f->open = 0;
    return 0;
}

static const hk_channel_ops writer = {.send = fifo_send};
static const hk_channel_ops reader = {.peek = fifo_peek, .consume = fifo_consume};

static void give_back(PyObject *capsule) { PyMem_Free(PyCapsule_GetPointer(capsule, HK_CAPSULE)); }

/* channel(fd, writes) -> capsule.  The descriptor stays the caller's. */
static PyObject *channel(PyObject *module, PyObject *args) {
    int fd, writes;
    if (!PyArg_ParseTuple(args, "ip", &fd, &writes)) return NULL;
    fifo *f = PyMem_Calloc(1, sizeof *f);
    if (f == NULL) return PyErr_NoMemory();
    f->base.ops = writes ? &writer : &reader;
    f->base.fd = fd;
    return PyCapsule_New(f, HK_CAPSULE, give_back);
}

static PyMethodDef methods[] = {{"channel", channel, METH_VARARGS, "A channel over a non-blocking pipe."}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "_hocket_fifos", .m_size = 0, .m_methods = methods};

PyMODINIT_FUNC PyInit__hocket_fifos(void) { return PyModule_Create(&module); }
