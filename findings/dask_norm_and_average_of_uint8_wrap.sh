#!/usr/bin/env bash
# Guess: norm and average of a Dask array of uint8, an image say, are NumPy's, as sum and mean are.
# Seen (dask 2026.8.0, numpy 2.4.6): both compute in uint8, without a word.  The norm of a hundred times 200 is 80
# (2000: 200 squared is 64 there), of order 3 it is 0 (928.3), and the average of 200 and 250 with weights 100 and 200
# is 0.373 (233.3).  The norm of order 1 and the mean are right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile "dask[array]==2026.8.0" numpy==2.4.6
cat > program.py <<'PY'
import dask.array as da
import numpy as np

image = np.full(100, 200, np.uint8)
split = da.from_array(image, chunks=25)
x, weights = np.array([200, 250], np.uint8), np.array([100, 200], np.uint8)
y, ys = (da.from_array(each, chunks=1) for each in (x, weights))
pairs = {
    "norm": (np.linalg.norm(image), da.linalg.norm(split)),
    "norm, order 3": (np.linalg.norm(image, 3), da.linalg.norm(split, 3)),
    "norm, order 1": (np.linalg.norm(image, 1), da.linalg.norm(split, 1)),
    "mean": (image.mean(), split.mean()),
    "average": (np.average(x, weights=weights), da.average(y, weights=ys)),
}
came = {name: (round(float(a), 3), round(float(b.compute()), 3)) for name, (a, b) in pairs.items()}
print(f"NumPy, Dask: {came}")
wanted = {
    "norm": (2000, 80), "norm, order 3": (928.318, 0), "norm, order 1": (20000, 20000), "mean": (200, 200),
    "average": (233.333, 0.373),
}
assert came == wanted, "changed"
PY
env/bin/python program.py
