#!/usr/bin/env bash
# Guess: a row of zeros in a Linear's weight (a channel that was pruned, or not trained yet) is zeros in torchao's float8
# weights, as in its int8 ones.
# Seen (torchao 0.18.0, torch 2.13.0, on a CPU): with Float8WeightOnlyConfig all numbers of that row are NaN, and so is
# that element of every result.  Int8WeightOnlyConfig keeps the zeros; a row of 1e-30 is no NaN in either.  No error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile torchao==0.18.0 torch==2.13.0 numpy==2.4.6
cat > program.py <<'PY'
import torch
from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, quantize_

for config, wanted in ((Int8WeightOnlyConfig(), 0), (Float8WeightOnlyConfig(), 64)):
    for smallest in (0.0, 1e-30):
        linear = torch.nn.Linear(64, 8, bias=False)
        torch.nn.init.ones_(linear.weight)
        with torch.no_grad():
            linear.weight[0] = smallest
        quantize_(linear, config)
        result, row = linear(torch.ones(1, 64)), linear.weight.dequantize()[0]
        count = int(row.isnan().sum())
        print(f"{type(config).__name__}, a row of {smallest:g}: {count} of 64 are NaN; result {result[0, :2].tolist()}")
        assert count == (0 if smallest else wanted), "changed"
        assert bool(result[0, 0].isnan()) == (count > 0) and abs(result[0, 1] - 64) < 2
PY
env/bin/python program.py
