#!/usr/bin/env bash
# Guess: a compressor that takes NumPy arrays gives back their numbers, in whatever order the array lies in memory,
# as zfpy and blosc2 do, or refuses, as pcodec does.
# Seen (fpzip 1.2.5, numpy 2.4.6): compress(x) of an array in Fortran order, and decompress with the same defaults,
# gives an array of the right shape with the numbers in other places, though fpzip is lossless; numbers of a C array
# come back.  With order="F" both ways the Fortran array is right and the C one is scrambled: order must repeat what
# the array knows of itself.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile numpy==2.4.6 fpzip==1.2.5 zfpy==1.0.1
cat > program.py <<'PY'
import fpzip
import numpy as np
import zfpy

x = np.arange(12, dtype=np.float32).reshape(3, 4)
for layout, array in {"C": x, "F": np.asfortranarray(x)}.items():
    for order in "CF":
        back = fpzip.decompress(fpzip.compress(array, precision=0, order=order), order=order).squeeze()
        same = np.array_equal(back, array)
        print(f"array in {layout} order, order={order!r}: shape {back.shape}, right: {same}, row 0: {back[0]}")
        assert back.shape == x.shape and same == (layout == order), "changed"
    assert np.array_equal(zfpy.decompress_numpy(zfpy.compress_numpy(array)), array), "changed: zfpy"
PY
env/bin/python program.py
