#!/usr/bin/env bash
# Guess: dask.array.insert of the list [1, 2, 3] into an array of floats leaves its other numbers as they are, as
# NumPy's insert does, which gives the new ones the array's dtype.
# Seen (dask 2026.8.0, numpy 2.4.6): the dtype is the list's.  Of 0.5 1.5 2.5 3.5 4.5 with whole numbers put in
# between 0 1 2 3 4 are left, as int64.  No error.  The lazy array says "object".  A list of True and False makes all
# the others True or False.  A single number, insert(x, 2, 7), is right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile dask==2026.8.0 numpy==2.4.6
cat > program.py <<'PY'
import dask.array
import numpy as np

x = np.array([0.5, 1.5, 2.5, 3.5, 4.5])
lazily = dask.array.from_array(x, chunks=3)
print(f"x is {x}")
for new, wanted in (([1, 2, 3], [1, 0, 2, 1, 2, 3, 4, 3]), ([True, False, True], [1, 1, 0, 1, 1, 1, 1, 1]),
                    ([1.0, 2, 3], [1, 0.5, 2, 1.5, 2.5, 3.5, 4.5, 3]),
                    (7, [7, 0.5, 7, 1.5, 2.5, 3.5, 4.5, 7])):
    right = np.insert(x, [0, 1, 5], new)
    put = dask.array.insert(lazily, [0, 1, 5], new, axis=0)
    found = put.compute()
    print(f"{new} put in: NumPy {right}, Dask {found} ({put.dtype}, {found.dtype})")
    assert found.tolist() == wanted and right.tolist()[1] == 0.5, "changed"
PY
env/bin/python program.py
