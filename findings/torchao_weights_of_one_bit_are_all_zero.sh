#!/usr/bin/env bash
# Guess: IntxWeightOnlyConfig(weight_dtype=torch.int1) keeps the sign of each weight, times a scale of its group.
# Seen (torchao 0.18.0, torch 2.13.0, on a CPU): the two values are -1 and 0, the scale is at least twice the largest
# weight, and all weights round to 0: the layer gives 0 for everything.  Of 2 bits -1 becomes -1.33, and 1 becomes 0.67.
# 4 and 8 bits miss the largest by 7 % and less.  No error, no warning.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile torchao==0.18.0 torch==2.13.0 numpy==2.4.6
cat > program.py <<'PY'
import torch
from torchao.quantization import IntxWeightOnlyConfig, quantize_

for dtype, zeros in ((torch.int1, 64), (torch.int2, 22), (torch.int4, 4), (torch.int8, 0)):
    linear = torch.nn.Linear(64, 1, bias=False)
    with torch.no_grad():
        linear.weight[0] = torch.linspace(-1, 1, 64)
    quantize_(linear, IntxWeightOnlyConfig(weight_dtype=dtype))
    row = linear.weight.dequantize()[0]
    print(f"{dtype}: {int((row == 0).sum())} of 64 weights from -1 to 1 are 0; the others are from {row.min():.3f} to {row.max():.3f}")
    assert int((row == 0).sum()) == zeros, "changed"
PY
env/bin/python program.py
