#!/usr/bin/env bash
# Guess: cross_entropy of logits and labels that are split by rows is the mean over all labels that are not ignored, as
# of a tensor, as DTensor says that its results are those of one device.
# Seen (torch 2.13.0, Gloo, two ranks, rows in two even shards): the loss is the plain mean of each rank's own mean, so
# it is another where the ranks ignore differently many labels (0.88 for 0.81), and NaN where one rank ignores all of
# its own; the same with weights of classes and nothing ignored (1.14 for 1.05).  The gradient is right each time: the
# number that is printed, and compared between checkpoints, is not the loss that is trained.  reduction="sum" is right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile torch==2.13.0 numpy==2.4.6
cat > program.py <<'PY'
import math
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.functional import cross_entropy

warnings.simplefilter("ignore")
dist.init_process_group("gloo")
rank, mesh = dist.get_rank(), init_device_mesh("cpu", (2,))
logits = torch.tensor([[2.0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0]])
weights = torch.tensor([1.0, 5, 1])
for name, labels, weight, reduction, right, wanted in (
    ("all labels", [0, 1, 2, 0], None, "mean", 0.9971, 0.9971),
    ("one ignored on each rank", [0, -100, -100, 2], None, "mean", 0.6691, 0.6691),
    ("one ignored", [0, 1, -100, 2], None, "mean", 0.8123, 0.8838),
    ("all of rank 1 ignored", [0, 1, -100, -100], None, "mean", 0.6691, math.nan),
    ("weights of classes", [0, 1, 2, 0], weights, "mean", 1.0478, 1.1402),
    ("one ignored, sum", [0, 1, -100, 2], None, "sum", 2.4368, 2.4368),
):
    labels = torch.tensor(labels)
    plain = logits.clone().requires_grad_()
    loss = cross_entropy(plain, labels, weight=weight, reduction=reduction)
    loss.backward()
    x = distribute_tensor(logits, mesh, [Shard(0)]).requires_grad_()
    y = distribute_tensor(labels, mesh, [Shard(0)])
    w = None if weight is None else distribute_tensor(weight, mesh, [Replicate()])
    split = cross_entropy(x, y, weight=w, reduction=reduction)
    split.backward()
    told, same = split.full_tensor().item(), torch.allclose(x.grad.full_tensor(), plain.grad)
    if rank == 0:
        print(f"{name}: {loss.item():.4f} of the tensor, {told:.4f} of the DTensor, same gradients {same}")
    assert abs(loss.item() - right) < 1e-4 and same, f"changed: {name}, the gradients"
    assert (math.isnan(told) if math.isnan(wanted) else abs(told - wanted) < 1e-4), f"changed: {name}, the loss"
dist.destroy_process_group()
PY
OMP_NUM_THREADS=1 env/bin/torchrun --standalone --nproc-per-node 2 program.py
