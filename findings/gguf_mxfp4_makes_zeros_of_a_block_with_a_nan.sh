#!/usr/bin/env bash
# Guess: gguf's Python quantizer tells of a NaN: a block of 32 numbers of which one is NaN comes back with a NaN.
# Seen (gguf 0.19.0, numpy 2.4.6): with Q8_0, Q5_0, Q5_1, Q4_0 and Q4_1 the whole block is NaN, with BF16 that number.
# With MXFP4 all 32 numbers are 0, as they are where one is infinite.  No error, though the format's scale has a NaN.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile gguf==0.19.0 numpy==2.4.6
cat > program.py <<'PY'
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize

np.seterr(all="ignore")
for what in (np.nan, np.inf):
    x = np.linspace(1, 2, 64, dtype=np.float32)
    x[3] = what
    for kind in ("BF16", "Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_1", "MXFP4"):
        back = dequantize(quantize(x, Type[kind]), Type[kind])[:32]
        unknown, zeros = int((~np.isfinite(back)).sum()), int((back == 0).sum())
        print(f"32 numbers from 1 to 1.5 and {what}, {kind}: {unknown} are not finite, {zeros} are 0")
        wanted = {"BF16": (1, 0), "MXFP4": (0, 32)}.get(kind, (32, 0))
        assert (unknown, zeros) == wanted, "changed"
PY
env/bin/python program.py
