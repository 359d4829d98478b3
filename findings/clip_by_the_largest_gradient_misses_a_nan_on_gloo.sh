#!/usr/bin/env bash
# Guess: clip_grad_norm_(norm_type=inf, error_if_nonfinite=True) of sharded parameters raises where a gradient has a
# NaN, whichever rank has it, as the norm of order 2 does.
# Seen (torch 2.13.0, Gloo, two ranks): with the NaN on rank 0 it raises.  With the NaN on rank 1 the norm is 1.0 on
# both ranks, nothing is raised, and the step is made: Gloo's maximum keeps the number where the NaN comes second.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile torch==2.13.0 numpy==2.4.6
cat > program.py <<'PY'
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
for order in (2.0, float("inf")):
    for owner in (0, 1):
        weight = torch.nn.Parameter(distribute_tensor(torch.ones(4), mesh, [Shard(0)]))
        gradient = torch.ones(4)
        gradient[2 * owner] = torch.nan
        weight.grad = distribute_tensor(gradient, mesh, [Shard(0)])
        try:
            norm = torch.nn.utils.clip_grad_norm_([weight], 1.0, norm_type=order, error_if_nonfinite=True)
            said = f"a norm of {norm.full_tensor().item()}"
        except RuntimeError:
            said = "an error"
        print(f"rank {dist.get_rank()}: order {order}, NaN on rank {owner}: {said}")
        assert said == ("a norm of 1.0" if (order, owner) == (float("inf"), 1) else "an error"), "changed"
dist.destroy_process_group()
PY
env/bin/python -m torch.distributed.run --nproc-per-node 2 program.py 2> errors.txt || { cat errors.txt; exit 1; }
