#!/usr/bin/env bash
# Guess: a loss of a DTensor is that of the whole tensor, also where the rows cannot be divided evenly:
# DTensor.mean() takes care of that.
# Seen (torch 2.13.0, 2.14.1 alike; 5 rows over 2 ranks): mean() is right, but mse_loss, smooth_l1_loss and
# binary_cross_entropy_with_logits, with the default reduction, are the mean of the two shards' means: 33.3 for the
# squares of 0..9, whose mean is 28.5.  The gradients of the first two are each shard's own, 2.5 times too large for
# the last element.  l1_loss and reduction="sum" are right.  No error.
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
mesh = init_device_mesh("cpu", (2,))
losses = {
    "mean": (lambda v: (v * v).mean(), True),
    "l1_loss": (lambda v: F.l1_loss(v, v * 0), True),
    "mse_loss, sum": (lambda v: F.mse_loss(v, v * 0, reduction="sum"), True),
    "mse_loss": (lambda v: F.mse_loss(v, v * 0), False),
    "smooth_l1_loss": (lambda v: F.smooth_l1_loss(v, v * 0), False),
    "binary_cross_entropy_with_logits": (lambda v: F.binary_cross_entropy_with_logits(v, v * 0), False),
}
for name, (loss, right) in losses.items():
    plain = torch.arange(10.0).reshape(5, 2)
    parts = distribute_tensor(plain, mesh, [Shard(0)])
    one, many = (x.clone().detach().requires_grad_() for x in (plain, parts))
    whole, split = loss(one), loss(many)
    whole.backward()
    split.backward()
    value, slope = split.full_tensor().item(), many.grad.full_tensor()
    if dist.get_rank() == 0:
        print(f"{name}: {whole.item():.4f} of the tensor, {value:.4f} of the DTensor; "
              f"gradient of the last element {one.grad[-1, -1]:.4f}, {slope[-1, -1]:.4f}")
    assert (abs(value - whole.item()) < 1e-4) == right, f"changed: {name}"
    if name in ("mse_loss", "smooth_l1_loss"):
        assert abs(slope[-1, -1] / one.grad[-1, -1] - 2.5) < 1e-4, f"changed: gradient of {name}"
dist.destroy_process_group()
PY
OMP_NUM_THREADS=1 env/bin/torchrun --standalone --nproc-per-node 2 program.py
