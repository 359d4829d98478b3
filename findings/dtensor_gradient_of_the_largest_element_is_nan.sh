#!/usr/bin/env bash
# Guess: the gradient of a DTensor's largest element is 1 there and 0 elsewhere, as a tensor's.
# Seen (torch 2.13.0, Gloo, two ranks, rows in even shards): x.amax() is right, and its gradient is infinite there and
# NaN elsewhere, on both ranks.  So are those of x.amin() and of x.norm(inf).  x.max(), which is the same of a tensor,
# x.max(0), x.norm() and logsumexp have the tensor's gradient.  No error.
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
plain = torch.tensor([[1.0, 2], [3, 4], [-9, 9], [5, 6]]).view(4, 2)
not_finite = ("amax", "amin", "norm(inf)")
calls = {
    "amax": lambda x: x.amax(),
    "amin": lambda x: x.amin(),
    "norm(inf)": lambda x: x.norm(float("inf")),
    "max": lambda x: x.max(),
    "max(0)": lambda x: x.max(0).values.sum(),
    "norm": lambda x: x.norm(),
    "logsumexp": lambda x: x.logsumexp((0, 1)),
}
for name, call in calls.items():
    x = plain.clone().requires_grad_()
    value = call(x)
    value.backward()
    split = distribute_tensor(plain, mesh, [Shard(0)]).requires_grad_()
    parts = call(split)
    parts.backward()
    joined, gradient = parts.full_tensor(), split.grad.full_tensor()
    if dist.get_rank() == 0:
        print(f"{name}: {value.item():.4f} and {joined.item():.4f}; gradients {x.grad.tolist()} and {gradient.tolist()}")
    assert torch.allclose(joined, value), f"changed: {name}"
    same = not gradient.isfinite().any() if name in not_finite else torch.allclose(gradient, x.grad)
    assert same, f"changed: the gradient of {name}"
dist.destroy_process_group()
PY
OMP_NUM_THREADS=1 env/bin/torchrun --standalone --nproc-per-node 2 program.py
