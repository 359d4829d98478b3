#!/usr/bin/env bash
# Guess: x.any(0).float() of a DTensor holds ones and zeros, and x.any(0).sum() counts the columns in which x is true.
# Seen (torch 2.13.0, Gloo, two ranks, rows in two even shards): each rank's own answer is made a number before the
# answers are joined, and joining adds: a column with a true element on both ranks is 2.0 of float(), any(0).sum() says
# 4 for 2 columns, and any(0) * 2 is 4.  any(0) itself, its negation, count_nonzero() and x.sum(0).bool().sum() are
# as of a tensor; all(0).float() is, too, as its parts are multiplied.
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
plain = torch.tensor([[1, 0, 1, 0], [1, 0, 0, 0], [1, 0, 1, 0], [1, 0, 0, 0]], dtype=torch.bool)
x = distribute_tensor(plain, mesh, [Shard(0)])
calls = {
    "x.any(0)": (lambda x: x.any(0), [True, False, True, False]),
    "~x.any(0)": (lambda x: ~x.any(0), [False, True, False, True]),
    "x.any(0).float()": (lambda x: x.any(0).float(), [2.0, 0.0, 2.0, 0.0]),
    "x.any(0) * 2": (lambda x: x.any(0) * 2, [4, 0, 4, 0]),
    "x.any(0).sum()": (lambda x: x.any(0).sum(), 4),
    "x.any(0).float().mean()": (lambda x: x.any(0).float().mean(), 1.0),
    "x.any(0).count_nonzero()": (lambda x: x.any(0).count_nonzero(), 2),
    "x.sum(0).bool().sum()": (lambda x: x.sum(0).bool().sum(), 2),
    "x.all(0).float()": (lambda x: x.all(0).float(), [1.0, 0.0, 0.0, 0.0]),
}
differ = []
for name, (call, wanted) in calls.items():
    whole, split = call(plain).tolist(), call(x).full_tensor().tolist()
    if dist.get_rank() == 0:
        print(f"{name}: {whole} of the tensor, {split} of the DTensor")
    assert split == wanted, f"changed: {name}"
    if whole != split:
        differ.append(name)
assert differ == ["x.any(0).float()", "x.any(0) * 2", "x.any(0).sum()", "x.any(0).float().mean()"], f"changed: {differ}"
dist.destroy_process_group()
PY
OMP_NUM_THREADS=1 env/bin/torchrun --standalone --nproc-per-node 2 program.py
