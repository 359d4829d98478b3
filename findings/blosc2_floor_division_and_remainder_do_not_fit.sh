#!/usr/bin/env bash
# Guess: blosc2.remainder is "equivalent to the Python modulus operator", as its docstring says: -4 % 3 is 2, and x is
# x // 3 * 3 + x % 3.
# Seen (blosc2 4.14.1, numpy 2.4.6): // rounds down, as Python's and NumPy's, but % has the sign of C's: -4 // 3 is -2
# and -4 % 3 is -1, so the two make -7 of -4.  It is so of ints and floats, by a number or an array, by the operator
# and the function.  An angle of -90 degrees % 360 stays -90.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile blosc2==4.14.1 numpy==2.4.6
cat > program.py <<'PY'
import blosc2
import numpy as np

assert "equivalent to the Python modulus operator" in blosc2.remainder.__doc__, "changed: docstring"
for dtype in ("int8", "int64", "float32", "float64"):
    x, three = np.arange(-4, 4).astype(dtype), np.full(8, 3, dtype)
    stored, threes = blosc2.asarray(x), blosc2.asarray(three)
    downs, rests = (stored // 3)[:], (stored % 3)[:]
    print(f"{dtype} {x}: // 3 is {downs}, % 3 is {rests} (NumPy {x % 3}), together {downs * 3 + rests}")
    assert (downs == x // 3).all() and (x // 3 * 3 + x % 3 == x).all()
    assert rests.tolist() == [-1, 0, -2, -1, 0, 1, 2, 0] == np.fmod(x, 3).tolist(), "changed"
    assert (blosc2.remainder(stored, 3)[:] == rests).all() and ((stored % threes)[:] == rests).all(), "changed"
degrees = (blosc2.asarray(np.array([-90, 450])) % 360)[:].tolist()
print("-90 and 450 degrees % 360:", degrees)
assert degrees == [-90, 90], "changed"
PY
env/bin/python program.py
