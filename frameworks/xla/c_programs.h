/* MPI's functions for C programs, by the numbers of MPI 5.0's ABI: eleven are handed to c_programs.py, in a Python that
   the program gets; every other one ends the program and says its name. */
#include <wchar.h>

#define CALLS(DO)                                                                                                        \
    DO(Finalize, (void), ())                                                                                             \
    DO(Comm_rank, (word comm, int *rank), (comm, rank))                                                                  \
    DO(Comm_size, (word comm, int *size), (comm, size))                                                                  \
    DO(Comm_split, (word comm, int color, int key, word *made), (comm, color, key, made))                                \
    DO(Comm_free, (word *comm), (comm))                                                                                  \
    DO(Allreduce, (word send, word recv, int count, word type, word op, word comm),                                      \
       (send, recv, count, type, op, comm))                                                                              \
    DO(Bcast, (word data, int count, word type, int root, word comm), (data, count, type, root, comm))                   \
    DO(Barrier, (word comm), (comm))                                                                                     \
    DO(Send, (word data, int count, word type, int to, int tag, word comm), (data, count, type, to, tag, comm))          \
    DO(Recv, (word data, int count, word type, int from, int tag, word comm, int *status),                               \
       (data, count, type, from, tag, comm, status))                                                                     \
    DO(Abort, (word comm, int code), (comm, code))

/* c_programs.py has this table, in this order. */
#define MEMBER(name, has, gives) int (*name) has;
static struct { int (*Init)(void); CALLS(MEMBER) } c;
__attribute__((visibility("default"))) void hocket_serve_c(const void *table) { memcpy(&c, table, sizeof c); }

static _Noreturn void end(const char *name, const char *why) {
    fprintf(stderr, "hocket: MPI_%s: %s\n", name, why);
    exit(1);
}
#define CARRIED_OUT(name, has, gives)                                                                                    \
    int MPI_##name has {                                                                                                 \
        if (!c.name) end(#name, "before MPI_Init");                                                                      \
        return c.name gives;                                                                                             \
    }
CALLS(CARRIED_OUT)
#define ENDS(name)                                                                                                       \
    int MPI_##name(void) { end(#name, "hocket does not carry this out; docs/mpi_abi.md has what it carries out"); }

/* Python's own library, in this process; `interpreter`: the program whose modules it is to have. */
static void *python(char *interpreter, size_t room) {
    const char *given = getenv("HOCKET_PYTHON"), *name = given ? strrchr(given, ':') : NULL;
    if (dlsym(RTLD_DEFAULT, "Py_IsInitialized")) return dlopen(NULL, RTLD_NOW);
    if (!name) end("Init", "HOCKET_PYTHON is not set: start the program by `hocket run -n 2 -- ./program`");
    snprintf(interpreter, room, "%.*s", (int)(name++ - given), given);
    char place[8192], *real = realpath(interpreter, NULL), *slash = real ? strrchr(real, '/') : NULL;
    if (slash) *slash = 0;
    snprintf(place, sizeof place, "%s/../lib/%s", slash ? real : "", name);
    free(real);
    void *found = dlopen(place, RTLD_NOW | RTLD_GLOBAL);
    if (!found) found = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    if (!found) snprintf(place, sizeof place, "there is no %s, in which hocket would run: install Python's library", name);
    if (!found) end("Init", place);
    return found;
}

int MPI_Init(int *argc, char ***argv) {
    if (c.Init) end("Init", "a second time");
    char interpreter[4096];
    void *library = python(interpreter, sizeof interpreter);
    int (*running)(void) = (int (*)(void))dlsym(library, "Py_IsInitialized");
    int (*take)(void) = (int (*)(void))dlsym(library, "PyGILState_Ensure");
    void (*let)(int) = (void (*)(int))dlsym(library, "PyGILState_Release");
    void *(*import)(const char *) = (void *(*)(const char *))dlsym(library, "PyImport_ImportModule");
    void (*print)(void) = (void (*)(void))dlsym(library, "PyErr_Print");
    if (!running()) { /* one that has the modules of HOCKET_PYTHON's environment */
        wchar_t *(*decode)(const char *, size_t *) = (wchar_t *(*)(const char *, size_t *))dlsym(library, "Py_DecodeLocale");
        void (*named)(const wchar_t *) = (void (*)(const wchar_t *))dlsym(library, "Py_SetProgramName");
        void (*begin)(int) = (void (*)(int))dlsym(library, "Py_InitializeEx");
        void *(*leave)(void) = (void *(*)(void))dlsym(library, "PyEval_SaveThread");
        named(decode(interpreter, NULL));
        begin(0); /* signals stay the program's */
        leave();
    }
    int state = take();
    int failed = !import("hocket.xla.c_programs") || !c.Init;
    if (failed) print();
    let(state);
    if (failed) end("Init", "hocket cannot be imported (the traceback is above): HOCKET_PYTHON names another environment");
    return c.Init();
}
int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    *provided = required;
    return MPI_Init(argc, argv);
}
