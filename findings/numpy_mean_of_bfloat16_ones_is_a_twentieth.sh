#!/usr/bin/env bash
# Guess: NumPy adds up the small types of ml_dtypes as it does its own: float16 in pairs, with a mean in float32, and
# int8 in int64.
# Seen (numpy 2.4.6, ml_dtypes 0.6.0): each addition is rounded to the type, one after the other, and results have it.
# 5,000 ones have the sum 256 and the mean 0.0513 in bfloat16 (float16: 5000 and 1), 16 and 0.0039 in float8_e4m3fn, and
# a standard deviation of 0.2266.  The sum of float8_e8m0fnu is NaN: it begins at a 0 that the type does not have.  Ten
# ones of int4 have the sum -6, the mean 0 and the dot product -6, while `x @ x` is 10.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile numpy==2.4.6 ml_dtypes==0.6.0
cat > program.py <<'PY'
import ml_dtypes
import numpy as np

seen = {}
for kind in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu):
    x = np.ones(5000, kind)
    seen[x.dtype.name] = [round(float(each), 4) for each in (x.sum(), x.mean(), x.std(), x.sum(dtype=np.float32))]
    print(f"5,000 ones of {x.dtype.name}: sum, mean, std, sum in float32: {seen[x.dtype.name]}")
assert seen["float16"] == [5000, 1, 0, 5000]
assert seen["bfloat16"] == [256, 0.0513, 0.2266, 5000], "changed"
assert seen["float8_e4m3fn"] == [16, 0.0039, 0.0625, 5000], "changed"
assert seen["float8_e5m2"] == [8, 0.0017, 0.0391, 5000], "changed"
assert np.isnan(seen["float8_e8m0fnu"][0]) and seen["float8_e8m0fnu"][3] == 5000, "changed"

for kind, wanted in ((np.int8, [10, 1, 10, 10]), (ml_dtypes.int4, [-6, 0, -6, 10]), (ml_dtypes.int2, [-2, 0, -2, 10])):
    x = np.ones(10, kind)
    came = [float(each) for each in (x.sum(), x.mean(), np.dot(x, x), x @ x)]
    print(f"ten ones of {x.dtype.name}: sum, mean, dot(x, x), x @ x: {came}")
    assert came == wanted, "changed"
PY
env/bin/python program.py
