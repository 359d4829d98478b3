#!/usr/bin/env bash
# Guess: x * 0.1 of float16 has the same bits in NumPy and in torch: both take Python's number as one of x's dtype, and
# round the product once.
# Seen (torch 2.13.0, numpy 2.4.6): NumPy rounds 0.1 to float16 first, torch to float32, in which it multiplies: of all
# positive normal float16 a third of the products by 0.1 differ, a sixth by 0.9.  Likewise in torch alone x * 0.1 and
# x * torch.tensor([0.1], dtype=x.dtype): a fifth of bfloat16.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile torch==2.13.0 numpy==2.4.6
cat > program.py <<'PY'
import numpy as np
import torch

bits = np.arange(0x0400, 0x7C00, dtype=np.uint16)  # all positive numbers that are normal
x = bits.view(np.float16)
shares = {}
for factor in (0.1, 0.9, 0.5):
    ours, theirs = x * factor, (torch.from_numpy(x.copy()) * factor).numpy()
    shares[factor] = float((ours != theirs).mean())
    single = (x.astype(np.float32) * np.float32(factor)).astype(np.float16)
    assert (theirs == single).all(), "changed: torch"
    assert (ours == (x.astype(np.float32) * np.float32(np.float16(factor))).astype(np.float16)).all(), "changed: NumPy"
y = torch.from_numpy(x.copy()).to(torch.bfloat16)
own = float((y * 0.1 != y * torch.tensor([0.1], dtype=torch.bfloat16)).float().mean())
print("differ:", shares, "bfloat16, in torch alone:", own)
assert shares[0.1] > 0.25 and shares[0.9] > 0.1 and shares[0.5] == 0 and own > 0.1, "changed"
PY
OMP_NUM_THREADS=1 env/bin/python program.py
