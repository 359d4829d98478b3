#!/usr/bin/env bash
# Guess: float8_e8m0fnu, the scale of the microscaling formats (OCP MX), has no zero and no sign, so a cast of such
# numbers from float32 does one thing wherever that dtype is: NaN, as they are no numbers of the format.
# Seen (torch 2.13.0, ml_dtypes 0.6.0 under numpy 2.4.6, which JAX uses, too): ml_dtypes makes NaN.  torch makes 2^-127
# of zero, and drops the sign of negative numbers: -2.5 becomes 2.  All else is rounded alike.  So the scale of a block
# of zeros is NaN in one and harmless in the other, and a wrong sign is seen in one alone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile torch==2.13.0 numpy==2.4.6 ml_dtypes==0.6.0
cat > program.py <<'PY'
import ml_dtypes
import numpy as np
import torch

x = np.array([0, -1, -2.5, 1.5, 3, 0.75, 1.4999, 2.0**-149, np.inf], np.float32)
in_torch = torch.from_numpy(x).to(torch.float8_e8m0fnu).float().numpy()
in_numpy = x.astype(ml_dtypes.float8_e8m0fnu).astype(np.float32)
for given, one, other in zip(x, in_torch, in_numpy, strict=True):
    print(f"{given:g}: torch {one:g}, ml_dtypes {other:g}")
assert in_torch[:3].tolist() == [2.0**-127, 1, 2], "changed: torch"
assert np.isnan(in_numpy[:3]).all(), "changed: ml_dtypes"
assert np.array_equal(in_torch[3:], in_numpy[3:], equal_nan=True)
PY
OMP_NUM_THREADS=1 env/bin/python program.py
