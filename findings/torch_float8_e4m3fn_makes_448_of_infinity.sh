#!/usr/bin/env bash
# Guess: a float32 that float8_e4m3fn cannot hold becomes NaN, its only value that is no number, in torch as in
# ml_dtypes, and as in torch's other float8 dtypes (infinity in e5m2, NaN in the fnuz ones).
# Seen (torch 2.13.0, ml_dtypes 0.6.0; torch 2.14.1 alike): torch makes 448 of all of them, and of infinity itself,
# so an overflow upstream cannot be seen any more; a NaN stays.  ml_dtypes makes NaN from 465 on.  e5m2 and e4m3fnuz
# do not saturate in either.  float8_e8m0fnu, a scale without sign or zero: torch makes 4 of -4 and 2^-127 of 0,
# ml_dtypes NaN of both.
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

nan, inf = float("nan"), float("inf")
LARGE = [464.0, 465.0, 1e9, inf, -inf, nan]
KNOWN = {
    "float8_e4m3fn": (LARGE, [448, 448, 448, 448, -448, nan], [448, nan, nan, nan, nan, nan]),
    "float8_e5m2": (LARGE, [448, 448, inf, inf, -inf, nan], [448, 448, inf, inf, -inf, nan]),
    "float8_e4m3fnuz": (LARGE, [nan] * 6, [nan] * 6),
    "float8_e8m0fnu": ([-4.0, 0.0, 3.0, nan], [4, 2.0**-127, 4, nan], [nan, nan, 4, nan]),
}
for name, (numbers, by_torch, by_ml_dtypes) in KNOWN.items():
    one = torch.tensor(numbers).to(getattr(torch, name)).float().tolist()
    other = np.array(numbers, np.float32).astype(getattr(ml_dtypes, name)).astype(np.float32).tolist()
    print(f"{name} of {numbers}: torch {one}, ml_dtypes {other}")
    assert np.array_equal(one, by_torch, equal_nan=True), f"changed: expected {by_torch} of torch"
    assert np.array_equal(other, by_ml_dtypes, equal_nan=True), f"changed: expected {by_ml_dtypes} of ml_dtypes"
PY
env/bin/python program.py
