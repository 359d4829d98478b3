#!/usr/bin/env bash
# Guess: x.norm(dim=0).sum() of a DTensor, the sum of the columns' norms (a group lasso), is the tensor's.
# Seen (torch 2.13.0, Gloo, two ranks, four rows in two even shards): it is the norm of the ranks' own sums: 9.9 for
# 14 with columns that lie on one rank each.  So is the sum of two parameters' norms by torch.stack([a.norm(),
# b.norm()]).sum(), 5 for 7.  Each rank still has the norm of its own part, and sum() is taken for something that may
# be done before these are joined. The norms themselves are right, and so are their mean, their maximum, and a.norm()
# + b.norm().  No error.  torch 2.15.0 has the sum right, too.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile torch==2.13.0 numpy==2.4.6
cat > program.py <<'PY'
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

warnings.simplefilter("ignore")
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
x = torch.tensor([[3.0, 0], [4, 0], [0, 0], [0, 9]]) / torch.tensor([5, 9]) * 7
a, b = torch.tensor([3.0, 0, 0, 0]), torch.tensor([0.0, 0, 0, 4])
calls = {
    "x.norm(dim=0).sum()": (lambda x, a, b: x.norm(dim=0).sum(), 14.0, 98**0.5),
    "linalg.vector_norm(x, dim=0).sum()": (lambda x, a, b: torch.linalg.vector_norm(x, dim=0).sum(), 14.0, 98**0.5),
    "x.norm(dim=0).mean()": (lambda x, a, b: x.norm(dim=0).mean(), 7.0, 7.0),
    "x.norm(dim=0).max()": (lambda x, a, b: x.norm(dim=0).max(), 7.0, 7.0),
    "x.norm(dim=0)[0]": (lambda x, a, b: x.norm(dim=0)[0], 7.0, 7.0),
    "stack([a.norm(), b.norm()]).sum()": (lambda x, a, b: torch.stack([a.norm(), b.norm()]).sum(), 7.0, 5.0),
    "a.norm() + b.norm()": (lambda x, a, b: a.norm() + b.norm(), 7.0, 7.0),
}
for name, (call, right, wanted) in calls.items():
    whole = call(x, a, b).item()
    split = call(*(distribute_tensor(v, mesh, [Shard(0)]) for v in (x, a, b))).full_tensor().item()
    if dist.get_rank() == 0:
        print(f"{name}: {whole:.4f} of the tensor, {split:.4f} of the DTensor")
    assert abs(whole - right) < 1e-4 and abs(split - wanted) < 1e-4, f"changed: {name}"
dist.destroy_process_group()
PY
OMP_NUM_THREADS=1 env/bin/torchrun --standalone --nproc-per-node 2 program.py
