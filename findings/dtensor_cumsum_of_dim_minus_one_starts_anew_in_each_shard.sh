#!/usr/bin/env bash
# Guess: dim=-1 is the last dim of a DTensor as of a tensor: cumsum(-1) of a matrix is its cumsum(1), however it is
# sharded.
# Seen (torch 2.13.0, Gloo, two ranks, 4 columns in two even shards): cumsum(1) is right, and cumsum(-1) is each
# shard's own: of a row 4 3 2 1 it is 4 7 2 3 for 4 7 9 10.  cumprod and logcumsumexp are alike, and so is a vector,
# whose only dim is 0 and -1.  No error: the number of the dim is compared with that of the sharding as it is, so -1
# is taken for a dim that is not sharded.  sort, softmax and sum take -1 for what it is.  torch 2.15.0 has cumsum(-1)
# right, too.
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
plain = torch.tensor([[4.0, 3, 2, 1], [1, 1, 1, 1]])
parts = distribute_tensor(plain, mesh, [Shard(1)])


def text(x):
    return " ".join(f"{v:.4g}" for v in x[0].reshape(-1))


calls = {
    "cumsum": (torch.cumsum, False),
    "cumprod": (torch.cumprod, False),
    "logcumsumexp": (torch.logcumsumexp, False),
    "softmax": (torch.softmax, True),
    "sort": (lambda x, dim: torch.sort(x, dim)[0], True),
    "sum": (torch.sum, True),
}
for name, (call, right) in calls.items():
    one, last, minus = call(plain, -1), call(parts, 1).full_tensor(), call(parts, -1).full_tensor()
    if dist.get_rank() == 0:
        print(f"{name}: {text(one)} of the tensor; of the DTensor {text(last)} by dim 1, "
              f"{text(minus)} by dim -1")
    assert torch.allclose(one, last), f"changed: {name} by dim 1"
    assert torch.allclose(one, minus) == right, f"changed: {name} by dim -1"
vector = distribute_tensor(torch.ones(4), mesh, [Shard(0)])
seen = [vector.cumsum(dim).full_tensor().tolist() for dim in (0, -1)]
if dist.get_rank() == 0:
    print("cumsum of a vector of ones by dim 0 and by dim -1:", *seen)
assert seen == [[1, 2, 3, 4], [1, 2, 1, 2]], f"changed: {seen}"
dist.destroy_process_group()
PY
OMP_NUM_THREADS=1 env/bin/torchrun --standalone --nproc-per-node 2 program.py
