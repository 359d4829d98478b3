#!/usr/bin/env bash
# Guess: np.sort puts NaNs last in every floating dtype, so also in the bfloat16 and float8 of ml_dtypes, whose max,
# isnan and argmax know NaNs.
# Seen (numpy 2.4.6, ml_dtypes 0.6.0): a NaN is less and greater than nothing, so each element stays where it stands
# between NaNs: [3 nan 1 2 5 nan 0 4] comes back as it is from sort, argsort and unique.  The two largest by
# argpartition are the last two of the array, 0 and 4, neither the NaNs nor the largest numbers.  float16 is sorted.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile numpy==2.4.6 ml_dtypes==0.6.0
cat > program.py <<'PY'
import ml_dtypes
import numpy as np

numbers = [3, np.nan, 1, 2, 5, np.nan, 0, 4]
for dtype in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn):
    x = np.array(numbers, dtype)
    found = np.sort(x)
    print(np.dtype(dtype).name, found, "argsort", np.argsort(x), "largest two", x[np.argpartition(np.abs(x), 6)[6:]],
          "max", x.max())
    assert np.isnan(x.max().astype(float)), "changed: max"
    wanted = [0, 1, 2, 3, 4, 5, np.nan, np.nan] if dtype is np.float16 else numbers
    assert np.array_equal(found.astype(float), wanted, equal_nan=True), f"changed: {found}"
    if dtype is not np.float16:
        assert np.argsort(x).tolist() == list(range(8)) and np.unique(x).size == 8, "changed: argsort or unique"
PY
env/bin/python program.py
