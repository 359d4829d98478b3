#!/usr/bin/env bash
# Guess: dask.array.unique(x, return_counts=True) gives NumPy's values and counts, which add up to the length of x, also
# where x has NaN: NumPy gives one NaN with the number of them.
# Seen (Dask 2026.8.0, NumPy 2.4.6): the values are NumPy's, and the count of NaN is 0.  Each block's counts are right;
# they are added up by comparing values for equality, and a NaN equals none.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile dask==2026.8.0 numpy==2.4.6
cat > program.py <<'PY'
import dask.array
import numpy as np

x = np.array([np.nan, 1.0, np.nan, 1.0, np.nan, 2.0])
values, counts = np.unique(x, return_counts=True)
lazily = dask.array.unique(dask.array.from_array(x, chunks=2), return_counts=True)
found, counted = (each.compute() for each in lazily)
print("NumPy", values, counts, "Dask", found, counted)
assert np.array_equal(values, found, equal_nan=True) and counts.tolist() == [2, 1, 3], "changed"
assert counted.tolist() == [2, 1, 0], f"changed: {counted}"
PY
env/bin/python program.py
