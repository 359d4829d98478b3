#!/usr/bin/env bash
# Guess: blosc2.argmax of an array with a NaN names the NaN, as NumPy's, or else the largest number, and it does not
# depend on the chunks.
# Seen (blosc2 4.14.1, numpy 2.4.6): it is the place of the largest number of the chunks that have no NaN, and 0 where
# there are none.  Of 9 2 NaN 4 5 6 7 8 it names the 8 in two chunks, the 9 in four, and in one chunk, which is the
# default, both argmax and argmin of 2 9 1 NaN are 0, which is neither.  max and min are NaN in each of them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile blosc2==4.14.1 numpy==2.4.6
cat > program.py <<'PY'
import blosc2
import numpy as np

x = np.array([9, 2, np.nan, 4, 5, 6, 7, 8])
assert np.argmax(x) == np.argmin(x) == 2
for size, wanted in ((8, (0, 0)), (4, (7, 4)), (2, (0, 1)), (1, (0, 1))):
    stored = blosc2.asarray(x, chunks=(size,))
    found = int(blosc2.argmax(stored)), int(blosc2.argmin(stored))
    print(f"{x}, {8 // size} chunks: argmax {found[0]}, argmin {found[1]}: {x[list(found)]}; max {blosc2.max(stored)}")
    assert np.isnan(blosc2.max(stored)) and np.isnan(blosc2.min(stored))
    assert found == wanted, "changed"
y = np.array([2, 9, 1, np.nan])
stored = blosc2.asarray(y)
found = int(blosc2.argmax(stored)), int(blosc2.argmin(stored))
print(f"{y}, chunks by default: argmax, argmin {found}")
assert found == (0, 0), "changed"
PY
env/bin/python program.py
