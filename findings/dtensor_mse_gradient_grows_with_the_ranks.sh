#!/usr/bin/env bash
# Guess: the gradient of a loss of two DTensors is that of the tensors.
# Seen (torch 2.13.0, Gloo, float32, rows in even shards): of mse_loss, huber_loss, smooth_l1_loss and soft_margin_loss,
# which take the mean, it is as many times too large as there are ranks, twice on two and three times on three; the
# losses themselves are right.  Each rank divides by the length of its own shard on the way back.  l1_loss,
# binary_cross_entropy_with_logits, reduction="sum" and ((a - b) ** 2).mean() have the tensors' gradient.  No error.
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
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

warnings.simplefilter("ignore")
dist.init_process_group("gloo")
size = dist.get_world_size()
mesh = init_device_mesh("cpu", (size,))
given, target = torch.arange(1.0, 13).view(6, 2), torch.ones(6, 2)
losses = {
    "mse_loss": (F.mse_loss, size),
    "huber_loss": (F.huber_loss, size),
    "smooth_l1_loss": (F.smooth_l1_loss, size),
    "soft_margin_loss": (F.soft_margin_loss, size),
    "l1_loss": (F.l1_loss, 1),
    "binary_cross_entropy_with_logits": (F.binary_cross_entropy_with_logits, 1),
    "mse_loss, summed": (lambda a, b: F.mse_loss(a, b, reduction="sum"), 1),
    "((a - b) ** 2).mean()": (lambda a, b: ((a - b) ** 2).mean(), 1),
}


def step(loss, a, b):
    a = a.detach().requires_grad_()
    value = loss(a, b)
    value.backward()
    return value, a.grad


for name, (loss, times) in losses.items():
    value, gradient = step(loss, given, target)
    parts = [v.full_tensor() for v in step(loss, *(distribute_tensor(v, mesh, [Shard(0)]) for v in (given, target)))]
    if dist.get_rank() == 0:
        ratio = parts[1][1, 0].item() / gradient[1, 0].item()
        print(f"{size} ranks, {name}: {value.item():.4f} and {parts[0].item():.4f}; gradients, divided: {ratio:.2f}")
    same = torch.allclose(parts[0], value) and torch.allclose(parts[1], times * gradient, rtol=1e-4)
    assert same, f"changed: {name}"
dist.destroy_process_group()
PY
for ranks in 2 3; do OMP_NUM_THREADS=1 env/bin/torchrun --standalone --nproc-per-node $ranks program.py; done
