#!/usr/bin/env bash
# Guess: Fabric.all_reduce(tokens, reduce_op="sum") of Python integers is their sum.
# Seen (lightning-fabric 2.6.6, torch 2.13.0, Gloo, two ranks): they are made tensors of int32, so 1,500,000,000 on each of
# two ranks is -1,294,967,296.  One rank's number of 2**31 or more is refused ("cannot be converted to type int32").  A
# mean of integers is cut towards 0, of 1 and 2 it is 1; True counts as uint8.  A tensor of int64 is added up rightly.
# No error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile torch==2.13.0 numpy==2.4.6 lightning-fabric==2.6.6
cat > program.py <<'PY'
import torch
from lightning_fabric import Fabric

fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
tokens = 1_500_000_000
for name, found, wanted, dtype in (
    ("sum of 1.5e9", fabric.all_reduce(tokens, reduce_op="sum"), 2 * tokens - 2**32, torch.int32),
    ("in int64", fabric.all_reduce(torch.tensor(tokens), reduce_op="sum"), 2 * tokens, torch.int64),
    ("mean of 1 and 2", fabric.all_reduce(1 + fabric.global_rank, reduce_op="mean"), 1, torch.int32),
    ("mean of -1 and -2", fabric.all_reduce(-1 - fabric.global_rank, reduce_op="mean"), -1, torch.int32),
    ("sum of True", fabric.all_reduce(True, reduce_op="sum"), 2, torch.uint8),
):
    fabric.print(f"{name}: {found.item()}, {found.dtype}")
    assert (found.item(), found.dtype) == (wanted, dtype), f"changed: {name}"
torch.distributed.destroy_process_group()
PY
OMP_NUM_THREADS=1 env/bin/torchrun --standalone --nproc-per-node 2 program.py
