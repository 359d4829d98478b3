#!/usr/bin/env bash
# Guess: comparing a blosc2 array with a number is NumPy's comparison: 1 is not 1.5, and every uint8 is below 256.
# Seen (blosc2 4.14.1, numpy 2.4.6): the number is first cast to the array's dtype.  In an array of int64 the 1 equals
# 1.5, and no 1 is below 1.5.  No uint8 is below 256, as 256 is 0 there; 0 equals it, and 200 is above 300.  No int32
# is below 2^40, and True is not below 2.  blosc2.lazyexpr("x < 256") is alike.  No error.  The sum of such a mask is
# not: it is computed in another way, and counts what NumPy counts, three where the mask has none.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile blosc2==4.14.1 numpy==2.4.6
cat > program.py <<'PY'
import blosc2
import numpy as np

cases = (("int64", [0, 1, 2], "x == 1.5", [False, True, False]), ("int64", [0, 1, 2], "x < 1.5", [True, False, False]),
         ("uint8", [0, 1, 200], "x < 256", [False] * 3), ("uint8", [0, 1, 200], "x == 256", [True, False, False]),
         ("uint8", [0, 1, 200], "x > 300", [False, False, True]), ("int32", [0, 1, 2], "x < 2**40", [False] * 3),
         ("bool", [False, True, True], "x < 2", [True, False, False]), ("float64", [0, 1, 2], "x == 1.5", [False] * 3))
for dtype, values, expression, wanted in cases:
    x = np.array(values, dtype)
    right, mask = eval(expression).tolist(), eval(expression, {"x": blosc2.asarray(x)})
    found, count = mask[:].tolist(), int(mask.sum())
    print(f"{dtype} {values}: {expression} is {found} with the sum {count}; NumPy's is {right}")
    assert found == wanted and count == sum(right), "changed"
x = blosc2.asarray(np.array([0, 200], np.uint8))
assert blosc2.lazyexpr("x < 256", {"x": x})[:].tolist() == [False, False], "changed: lazyexpr"
PY
env/bin/python program.py
