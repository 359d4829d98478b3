#!/usr/bin/env bash
# Guess: xarray's groupby(...).sum(skipna=True) of integers, which have no NaN, is groupby(...).sum(), whichever of
# the optional packages that make it faster are installed.
# Seen (xarray 2026.9.0, flox 0.11.2, numbagg 0.9.6, numpy 2.4.6): with flox alone it is.  Once numbagg is there, too,
# flox takes it, and it adds up in the integers' own dtype: the sum of 250 255 100 250 in uint8 is 87, in a result of
# uint64 (855).  int16 and int32 wrap alike; without skipna, and without groups, the sums are
# right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile xarray==2026.9.0 flox==0.11.2 numpy==2.4.6
cat > program.py <<'PY'
import sys

import numpy as np
import xarray

values, groups = [200, 250, 3, 255, 9, 100, 40, 250], [0, 1, 0, 1, 0, 1, 0, 1]
wraps = sys.argv[1] == "numbagg"
for dtype, scale, wanted in ((np.uint8, 1, 87), (np.int16, 100, 85500 - 65536), (np.int32, 2**22, 855 * 2**22 - 2**32)):
    x = xarray.DataArray(np.array(values, dtype) * dtype(scale), dims="t", coords={"group": ("t", groups)})
    skipped, plain = (x.groupby("group").sum(skipna=skipna) for skipna in (True, None))
    print(f"{sys.argv[1]}: {x.dtype}: sum(skipna=True) {skipped.values} ({skipped.dtype}), sum() {plain.values}")
    assert plain.values.tolist() == [252 * scale, 855 * scale] and x.sum(skipna=True) == 1107 * scale
    assert skipped.values.tolist() == [252 * scale, wanted if wraps else 855 * scale], "changed"
PY
env/bin/python program.py flox
python3 -m pip --python env/bin/python install --quiet --no-compile numbagg==0.9.6 numpy==2.4.6
env/bin/python program.py numbagg
