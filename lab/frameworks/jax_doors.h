/* What jax_psum.py compares hocket with through the same door: MPICH (-DMPICH), or a library that returns at once. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef uintptr_t word;
const int mpiabi_version_major = 2, mpiabi_version_minor = 10, mpiabi_version_patch = 0;
const int mpiwrapper_version_major = 2, mpiwrapper_version_minor = 10, mpiwrapper_version_patch = 0;
void mpiwrapper_export_fortran_constants_(void) {}
#define REFUSE(name) int name(void) { return 1; }
#include "names.h"

#ifdef MPICH
#include <mpi.h>
#define DO(...) return __VA_ARGS__
static MPI_Datatype type_of(word type) {
    return type == MPIABI_FLOAT ? MPI_FLOAT : type == MPIABI_INT32_T ? MPI_INT32_T : MPI_BYTE;
}
static MPI_Op op_of(word op) { return op == MPIABI_MAX ? MPI_MAX : op == MPIABI_MIN ? MPI_MIN : MPI_SUM; }
static MPI_Comm comm_of(word comm) { return comm == MPIABI_COMM_WORLD ? MPI_COMM_WORLD : (MPI_Comm)comm; }
#else
#define DO(...) return 0
#endif

int MPIABI_Init_thread(int *argc, char ***argv, int required, int *got) { DO(MPI_Init_thread(0, 0, MPI_THREAD_MULTIPLE, got)); }
int MPIABI_Finalize(void) { return 0; }
int MPIABI_Is_thread_main(int *flag) { return *flag = 1, 0; }
int MPIABI_Comm_split(word comm, int color, int key, word *made) {
#ifdef MPICH
    MPI_Comm found;
    int code = MPI_Comm_split(comm_of(comm), color, key, &found);
    return *made = (word)found, code;
#else
    return *made = 1000 + key, 0;
#endif
}
int MPIABI_Comm_rank(word comm, int *rank) { *rank = (int)comm - 1000; DO(MPI_Comm_rank(comm_of(comm), rank)); }
int MPIABI_Comm_size(word comm, int *size) { *size = atoi(getenv("RANKS")); DO(MPI_Comm_size(comm_of(comm), size)); }
int MPIABI_Comm_free(word *comm) { return 0; }
int MPIABI_Error_string(int code, char *to, int *length) { return *length = sprintf(to, "error %d", code), 0; }
int MPIABI_Allreduce(const void *send, void *recv, int n, word type, word op, word comm) {
    DO(MPI_Allreduce(send, recv, n, type_of(type), op_of(op), comm_of(comm)));
}
int MPIABI_Sendrecv(const void *data, int n, word type, int to, int tag, void *into, int m, word mtype, int from, int mtag,
                    word comm, void *status) {
    DO(MPI_Sendrecv(data, n, MPI_BYTE, to, tag, into, m, MPI_BYTE, from, mtag, comm_of(comm), MPI_STATUS_IGNORE));
}
