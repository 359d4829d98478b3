#!/usr/bin/env bash
# Guess: Accelerator().pad_across_processes(mask) of ranks with masks of unlike lengths is a mask on all of them, to be
# gathered, which is what it is for.
# Seen (accelerate 1.15.0, torch 2.13.0, two ranks): int64 on the shorter rank, bool on the longer one, which is returned
# as it is: the padding is zeros of the mask's type plus the integer pad_index, and such a sum is int64.  With
# pad_index=False it is a mask on both.  uint8 takes pad_index=-1 for 255, and float16 stays float16.  No error.
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


def padded(dtype, **options):
    return accelerator.pad_across_processes(torch.ones(1 + rank, dtype=dtype), **options)


for name, found, short, long in (
    ("bool", padded(torch.bool), torch.tensor([1, 0]), torch.tensor([True, True])),
    ("bool, pad_index=False", padded(torch.bool, pad_index=False), torch.tensor([True, False]), torch.tensor([True] * 2)),
    ("uint8, pad_index=-1", padded(torch.uint8, pad_index=-1), torch.tensor([1, 255]).byte(), torch.tensor([1, 1]).byte()),
    ("float16", padded(torch.float16), torch.tensor([1.0, 0]).half(), torch.tensor([1.0, 1]).half()),
):
    print(f"rank {rank}, {name}: {found}", flush=True)
    wanted = long if rank else short
    assert found.dtype == wanted.dtype and found.equal(wanted), f"changed: {name}"
torch.distributed.destroy_process_group()
PY
OMP_NUM_THREADS=1 env/bin/torchrun --standalone --nproc-per-node 2 program.py
