#!/usr/bin/env bash
# Guess: fill_(2.0) makes every element of a DTensor 2, whatever it held before.
# Seen (torch 2.13.0, Gloo, two ranks, rows in two even shards): the result of x.sum(0) holds 4, of x.prod(0) 4 and of
# x.norm(dim=0) 2.83 behind it, as each rank fills its own part of a result that is not joined yet, and then they are
# added, multiplied, or joined as norms.  With x.mean(0) and x.amax(0) it is 2, and zero_() and full_like(x.sum(0), 2.0)
# are as of a tensor.  add_(1.0) in the same place is refused with a word, fill_ passes.
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
plain = torch.arange(1.0, 9).view(4, 2)
x = distribute_tensor(plain, mesh, [Shard(0)])
calls = {
    "x.sum(0).fill_(2)": (lambda x: x.sum(0).fill_(2.0), 2.0, 4.0),
    "x.prod(0).fill_(2)": (lambda x: x.prod(0).fill_(2.0), 2.0, 4.0),
    "x.norm(dim=0).fill_(2)": (lambda x: x.norm(dim=0).fill_(2.0), 2.0, 8**0.5),
    "x.mean(0).fill_(2)": (lambda x: x.mean(0).fill_(2.0), 2.0, 2.0),
    "x.amax(0).fill_(2)": (lambda x: x.amax(0).fill_(2.0), 2.0, 2.0),
    "x.sum(0).zero_()": (lambda x: x.sum(0).zero_(), 0.0, 0.0),
    "full_like(x.sum(0), 2)": (lambda x: torch.full_like(x.sum(0), 2.0), 2.0, 2.0),
}
for name, (call, right, wanted) in calls.items():
    whole, split = call(plain), call(x).full_tensor()
    if dist.get_rank() == 0:
        print(f"{name}: {whole.tolist()} of the tensor, {split.tolist()} of the DTensor")
    assert torch.allclose(whole, torch.full((2,), right)) and torch.allclose(split, torch.full((2,), wanted)), name
try:
    x.sum(0).add_(1.0)
except RuntimeError:
    pass
else:
    raise AssertionError("changed: add_ is not refused")
dist.destroy_process_group()
PY
OMP_NUM_THREADS=1 env/bin/torchrun --standalone --nproc-per-node 2 program.py
