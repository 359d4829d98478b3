#!/usr/bin/env bash
# Guess: the MPI datatype that mpi4py.util.dtlib makes of a NumPy dtype of records carries the records: fields of
# strings, as "S8" and "U4", arrive whole, or there is an error.
# Seen (mpi4py 4.1.2, MPICH 5.0.2, numpy 2.4.6): of each string the first letter is sent, "hydrogen" arrives as "h"
# among right numbers.  The extent of the datatype is right; its size is 9 bytes of 16.
# Of a plain array of "S8" the extent is wrong, too: of two strings two letters are sent, and "hydrogen",
# "helium" arrive as "hy" and nothing.  No error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile numpy==2.4.6 mpi4py==4.1.2 mpich==5.0.2
cat > program.py <<'PY'
import numpy as np
from mpi4py import MPI
from mpi4py.util import dtlib

comm = MPI.COMM_WORLD


def broadcast(values, dtype):
    dtype = np.dtype(dtype)
    datatype = dtlib.from_numpy_dtype(dtype).Commit()
    x = np.array(values, dtype) if comm.rank == 0 else np.zeros(len(values), dtype)
    comm.Bcast([x, len(x), datatype])
    sizes = datatype.Get_size(), datatype.Get_extent()[1], dtype.itemsize
    datatype.Free()
    return comm.gather(x.tolist())[1:] + [sizes] if comm.rank == 0 else comm.gather(x.tolist())


for values, dtype, wanted in (
        ([(b"hydrogen", 1.0), (b"helium", 4.0)], [("name", "S8"), ("mass", "f8")],
         [[(b"h", 1.0), (b"h", 4.0)], (9, 16, 16)]),
        ([(7, "left"), (8, "up")], [("place", "i4"), ("side", "U4")], [[(7, "l"), (8, "u")], (8, 20, 20)]),
        ([b"hydrogen", b"helium"], "S8", [[b"hy", b""], (1, 1, 8)])):
    found = broadcast(values, dtype)
    if comm.rank == 0:
        print(f"{values} arrives as {found[0]}; size, extent, NumPy's size {found[1]}")
        if found != wanted:
            print(f"changed: expected {wanted}", flush=True)
            comm.Abort(1)
PY
env/bin/mpiexec -n 2 env/bin/python program.py
