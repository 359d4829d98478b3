#!/usr/bin/env bash
# Guess: dist.reduce(x, dst=0) changes x on rank 0 only: the documentation says that only dst receives the result,
# and NCCL and MPI leave the other ranks' x alone.
# Seen (torch 2.13.0, Gloo, two ranks): rank 1's x is half its own and half the sum.  A second reduce of the same x
# adds that part once more.  With one element it happens to be left alone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile torch==2.13.0 numpy==2.4.6
cat > program.py <<'PY'
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
x, one = torch.ones(4), torch.ones(1)
dist.reduce(x, dst=0)
dist.reduce(one, dst=0)
print("rank", rank, x.tolist(), "one element:", one.tolist())
assert x.tolist() == ([2, 2, 2, 2] if rank == 0 else [1, 1, 2, 2]), f"changed: {x.tolist()}"
assert one.item() == (2 if rank == 0 else 1), "changed: one element"
dist.destroy_process_group()
PY
OMP_NUM_THREADS=1 env/bin/torchrun --standalone --nproc-per-node 2 program.py
