#!/usr/bin/env bash
# Guess: torch's PowerSGD hook sends a gradient of zeros (a module that saw no input, a dead layer) as zeros, with every
# rank of approximation.
# Seen (torch 2.13.0, Gloo): of rank 1, its default, and 2, all of that gradient becomes NaN, and stays so in the
# following steps, in which there is a gradient; of rank 4 it is zeros, then right.  Columns are divided by their
# length, 0, and the hook waits for a ZeroDivisionError that tensors do not raise; from rank 3 on it asks for a QR.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile torch==2.13.0 numpy==2.4.6
cat > program.py <<'PY'
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def gradients(rank):
    """The largest magnitudes in four steps, of which the third one's input is zeros."""
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64, bias=False))
    state = PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2, min_compression_rate=1)
    model.register_comm_hook(state, powerSGD_hook)
    found = []
    for step in range(4):
        model.zero_grad()
        x = torch.randn(8, 64) if step != 2 else torch.zeros(8, 64)
        model(x).square().sum().backward()
        found.append(float(model.module.weight.grad.abs().max()))
    return found


for rank in (1, 2, 4):
    print("rank", rank, gradients(rank))
for rank in (1, 2):
    *before, zeros, after = gradients(rank)
    assert min(before) > 0 and zeros != zeros and after != after, "changed"
*before, zeros, after = gradients(4)
assert min(before) > 0 and zeros == 0 and after > 0, "changed"
dist.destroy_process_group()
PY
OMP_NUM_THREADS=1 env/bin/python -W ignore program.py
