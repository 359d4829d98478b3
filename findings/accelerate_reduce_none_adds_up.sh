#!/usr/bin/env bash
# Guess: Accelerator().reduce(x, "none") leaves x as it is, and a reduction that there is not, as "min", is refused.
# Seen (accelerate 1.15.0, torch 2.13.0, Gloo, two ranks): both are the sum.  "max" and "mean" are looked for by name,
# and everything else adds up, "min", "avg" and "MEAN" too: ranks that have 1 and 2 get 3.  No error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile torch==2.13.0 numpy==2.4.6 accelerate==1.15.0
cat > program.py <<'PY'
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
rank = accelerator.process_index
for reduction, wanted in (("sum", 3), ("mean", 1.5), ("max", 2), ("none", 3), ("min", 3), ("avg", 3), ("MEAN", 3)):
    found = accelerator.reduce(torch.tensor([1.0 + rank]), reduction).item()
    if rank == 0:
        print(f"{reduction}: {found}")
    assert found == wanted, f"changed: {reduction}"
torch.distributed.destroy_process_group()
PY
OMP_NUM_THREADS=1 env/bin/torchrun --standalone --nproc-per-node 2 program.py
