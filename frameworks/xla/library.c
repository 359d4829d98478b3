/* The library that XLA's CPU collectives load under the name of MPI: every name that they ask for, of which XLA calls 15.
   These go to a table of functions (serving.pyx); every other one answers with an error that names it.  XLA's names
   begin with MPIABI_, those of C programs (c_programs.h) with MPI_.  Nothing here needs Python to load. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "xla/serving.h"
#include "xla/c_programs.h"

#define LONGEST 1024 /* of an error's text, with its NUL, as MPI has it */
enum { REFUSED = 1 };

/* The loader looks at these first: it takes ABI 2, from minor 9 on. */
const int mpiabi_version_major = 2, mpiabi_version_minor = 10, mpiabi_version_patch = 0;
const int mpiwrapper_version_major = 2, mpiwrapper_version_minor = 10, mpiwrapper_version_patch = 0;
void mpiwrapper_export_fortran_constants_(void) {}

static _Thread_local char said[LONGEST];
static int refuse(const char *name) {
    snprintf(said, sizeof said, "hocket does not carry out %s: it serves what XLA's CPU collectives call", name);
    return REFUSED;
}
#define REFUSE(name) int MPIABI_##name(void) { return refuse("MPI_" #name); }
#define REFUSE_EXTENSION(name) int MPIXABI_##name(void) { return refuse("MPIX_" #name); }
#include "xla_names.h" /* the constants, and REFUSE or ENDS of each function that is not here; setup.py writes it */

static struct hk_serving serving;
static char broken[LONGEST]; /* why there is no table */

/* serving.pyx hands in its functions. */
__attribute__((visibility("default"))) void hocket_serve(const struct hk_serving *table) { serving = *table; }

/* XLA calls Init_thread with the GIL held, and Python is in the process: it brings the table. */
static void bring(void) {
    typedef void *(*import_fn)(const char *);
    typedef int (*gil_fn)(void);
    typedef void (*release_fn)(int);
    import_fn import = (import_fn)dlsym(RTLD_DEFAULT, "PyImport_ImportModule");
    gil_fn take = (gil_fn)dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
    release_fn let = (release_fn)dlsym(RTLD_DEFAULT, "PyGILState_Release");
    void (*print)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "PyErr_Print");
    if (!import || !take || !let || !print) {
        snprintf(broken, sizeof broken, "hocket: no Python in this process; it serves XLA inside JAX alone");
        return;
    }
    int state = take();
    if (!import("hocket.xla.serving") || !serving.init) {
        print();
        snprintf(broken, sizeof broken,
                 "hocket under XLA: `import hocket.xla.serving` failed (its traceback is on stderr): install hocket in the "
                 "environment of this program, or unset MPITRAMPOLINE_LIB and JAX_CPU_COLLECTIVES_IMPLEMENTATION");
    }
    let(state);
}

int MPIABI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    if (!serving.init) bring();
    *provided = required;
    return serving.init ? serving.init(said) : REFUSED;
}
int MPIABI_Finalize(void) { return 0; }             /* calls still come behind it */
int MPIABI_Is_thread_main(int *flag) { return *flag = 1, 0; } /* else XLA refuses: here every thread may call */

int MPIABI_Comm_split(word comm, int color, int key, word *made) {
    struct hk_group *group = calloc(1, sizeof *group);
    if (!group) return REFUSED;
    *made = (word)group;
    group->rank = key, group->size = key + 1;
    /* XLA drops this error, so the group keeps it for its first call. */
    if (serving.split) return serving.split(group, color, key, group->broken);
    memcpy(group->broken, broken, sizeof broken);
    return REFUSED;
}
static struct hk_group *world(word comm) { return comm == MPIABI_COMM_WORLD ? NULL : (struct hk_group *)comm; }
int MPIABI_Comm_rank(word comm, int *rank) { return *rank = world(comm) ? world(comm)->rank : 0, 0; }
int MPIABI_Comm_size(word comm, int *size) { return *size = world(comm) ? world(comm)->size : 1, 0; }
int MPIABI_Comm_free(word *comm) { return *comm = MPIABI_COMM_NULL, 0; } /* a group lives as long as the process */

int MPIABI_Error_string(int code, char *to, int *length) {
    *length = snprintf(to, LONGEST, "%s", said);
    return 0;
}

/* Why the call on `comm` cannot be made, if it cannot. */
static int amiss(struct hk_group *group, const char *name, long long count) {
    if (!group) return refuse("calls on MPI_COMM_WORLD");
    if (group->broken[0]) return memcpy(said, group->broken, sizeof said), REFUSED;
    if (count >= 0) return 0;
    snprintf(said, sizeof said, "hocket: %s of %lld elements: XLA cuts counts to 32 bits, so a message of 2 GiB or more "
             "per rank cannot be sent: split the array", name, count);
    return REFUSED;
}
#define CHECKED(name, count) struct hk_group *group = world(comm); if (amiss(group, name, count)) return REFUSED

int MPIABI_Allreduce(const void *send, void *recv, int count, word type, word op, word comm) {
    CHECKED("an allreduce", count);
    return serving.allreduce(group, send, recv, count, type_of(type), op_of(op), said);
}
int MPIABI_Allgather(const void *send, int n, word stype, void *recv, int count, word type, word comm) {
    CHECKED("an allgather", count);
    return serving.allgather(group, send, recv, count, type_of(type), said);
}
int MPIABI_Reduce_scatter(const void *send, void *recv, const int *counts, word type, word op, word comm) {
    CHECKED("a reduce_scatter", counts[0]);
    for (int r = 1; r < group->size; r++)
        if (counts[r] != counts[0]) return refuse("MPI_Reduce_scatter with counts that differ");
    return serving.reduce_scatter(group, send, recv, counts[0], type_of(type), op_of(op), said);
}
int MPIABI_Sendrecv(const void *data, int n, word stype, int to, int tag, void *into, int m, word type, int from,
                    int mtag, word comm, void *status) {
    CHECKED("a message", n < m ? n : m);
    return serving.sendrecv(group, data, n, to, into, m, from, said);
}

/* XLA's ppermute: Irecv where something comes, Isend for each that it goes to, then Wait for each, in one thread.  The
   parts are noted, and the first Wait carries them out. */
static int note(word comm, const char *name, void *data, int count, int peer, int receives, word *request) {
    CHECKED(name, count);
    *request = (word)group;
    return serving.note(group, data, count, peer, receives, said);
}
int MPIABI_Isend(const void *data, int count, word type, int peer, int tag, word comm, word *request) {
    return note(comm, "a ppermute", (void *)data, count, peer, 0, request);
}
int MPIABI_Irecv(void *data, int count, word type, int peer, int tag, word comm, word *request) {
    return note(comm, "a ppermute", data, count, peer, 1, request);
}
int MPIABI_Wait(word *request, void *status) {
    struct hk_group *group = (struct hk_group *)*request;
    *request = MPIABI_REQUEST_NULL;
    return group && group != (void *)MPIABI_REQUEST_NULL ? serving.wait(group, said) : 0;
}
