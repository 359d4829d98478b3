#!/usr/bin/env bash
# Guess: a NaN that bitsandbytes keeps in 8 bits makes its block NaN, as it does in 4 bits, or stays one.
# Seen (bitsandbytes 0.50.2, torch 2.13.0, on a CPU): it comes back as the negative of the block's largest number, and the
# other 63 as if it were not there; float32, float16 and bfloat16 alike.  In 4 bits (nf4, fp4) all 64 are NaN.  No error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile bitsandbytes==0.50.2 torch==2.13.0 numpy==2.4.6
cat > program.py <<'PY'
import torch
from bitsandbytes import functional

for dtype in (torch.float32, torch.float16, torch.bfloat16):
    x = torch.linspace(-1, 2, 64).to(dtype)
    x[5] = torch.nan
    back = functional.dequantize_blockwise(*functional.quantize_blockwise(x, blocksize=64))
    print(f"{dtype}: NaN among numbers from -1 to 2, 8 bits: {back[5]:.3f}, and {int(back.isnan().sum())} of 64 are NaN")
    assert -2 <= back[5] < -1.98 and not back.isnan().any(), "changed"
x = x.float()
for kind in ("nf4", "fp4"):
    packed, state = functional.quantize_4bit(x, blocksize=64, quant_type=kind)
    count = int(functional.dequantize_4bit(packed, state).isnan().sum())
    print(f"{kind}: {count} of 64 are NaN")
    assert count == 64, "changed"
PY
env/bin/python program.py
