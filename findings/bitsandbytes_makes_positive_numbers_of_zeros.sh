#!/usr/bin/env bash
# Guess: what bitsandbytes keeps in 8 bits (quantize_blockwise, its default code, in which there is a 0) is still 0 where
# it was 0.
# Seen (bitsandbytes 0.50.2, torch 2.13.0, on a CPU): beside a 1 all zeros of its block of 64 come back as 0.0000212, four
# codes above the code's own 0, and with the unsigned code as 0.0000156.  A block of zeros alone stays 0, and so do zeros
# in 4 bits (nf4, fp4).  No error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile bitsandbytes==0.50.2 torch==2.13.0 numpy==2.4.6
cat > program.py <<'PY'
import torch
from bitsandbytes import functional

beside = torch.zeros(64)
beside[0] = 1
for name, code in (("signed", functional.create_dynamic_map()), ("unsigned", functional.create_dynamic_map(signed=False))):
    assert (code == 0).any()
    for x in (torch.zeros(64), beside):
        back = functional.dequantize_blockwise(*functional.quantize_blockwise(x, code=code, blocksize=64))
        print(f"{name} code, which has a 0; largest {x.max():g}: zeros come back as {back[-1]:.7f}")
        assert abs(back[-1] - (x.max() and {"signed": 2.125e-5, "unsigned": 1.5625e-5}[name])) < 1e-9, "changed"
for kind in ("nf4", "fp4"):
    packed, state = functional.quantize_4bit(beside, blocksize=64, quant_type=kind)
    back = functional.dequantize_4bit(packed, state).reshape(-1)
    print(f"{kind}: zeros come back as {back[-1]:g}")
    assert back[-1] == 0
PY
env/bin/python program.py
