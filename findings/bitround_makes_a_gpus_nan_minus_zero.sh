#!/usr/bin/env bash
# Guess: rounding a NaN's mantissa to fewer bits leaves a NaN, with any number of bits.
# Seen (numcodecs 0.16.6, numpy 2.4.6): NumPy's NaN, 0x7fc00000, stays one if a bit is kept.  0x7fffffff, the NaN
# that NVIDIA's GPUs make, becomes -0.0 with any number of kept bits: the rounding carries into the sign.  0xffffffff
# becomes 0.0, 0x7f800001 infinity, and with BitRound(0) NumPy's NaN is -0.0, too.  So compressed gradients have
# zeros where a step overflowed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile numpy==2.4.6 numcodecs==0.16.6
cat > program.py <<'PY'
import numpy as np
from numcodecs import BitRound

nans = np.array([0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001], np.uint32).view(np.float32)
assert np.isnan(nans).all()
for bits in (0, 1, 7, 22):
    came = np.frombuffer(BitRound(bits).encode(nans.copy()), np.float32)
    print(f"BitRound({bits}) of {[hex(x) for x in nans.view(np.uint32)]}: {came.tolist()}")
    first = 0x80000000 if bits == 0 else 0x7FC00000
    assert came.view(np.uint32).tolist() == [first, 0x80000000, 0, 0x7F800000], "changed"
PY
env/bin/python program.py
