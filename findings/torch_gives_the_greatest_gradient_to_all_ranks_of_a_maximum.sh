#!/usr/bin/env bash
# Guess: torch.distributed.nn.functional.all_reduce, which is there to be differentiated, has the gradient of what it
# computes: with MAX only the rank that has the maximum gets one, with PRODUCT each rank gets the other's factor times
# it.
# Seen (torch 2.13.0, 2.15.0 alike; Gloo; x is 2 on rank 0 and 3 on rank 1, the losses are 10 and 100 times the
# result): only SUM and AVG are right.  For every op the gradients are reduced by that same op: MAX gives 100, the
# greatest of the two gradients, to both ranks (0 and 110 are right), MIN gives 10 to both (110 and 0), and PRODUCT
# the product of the gradients, 1000, to both (330 and 220).  The results are right, and nothing is raised.
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
from torch.distributed.nn.functional import all_reduce

warnings.simplefilter("ignore")
dist.init_process_group("gloo")
rank = dist.get_rank()
ops = {
    "SUM": (torch.sum, [110, 110], [110, 110]),
    "AVG": (torch.mean, [55, 55], [55, 55]),
    "MAX": (torch.max, [0, 110], [100, 100]),
    "MIN": (torch.min, [110, 0], [10, 10]),
    "PRODUCT": (torch.prod, [330, 220], [1000, 1000]),
}
for name, (whole, right, wanted) in ops.items():
    both = torch.tensor([2.0, 3.0], requires_grad=True)
    (110 * whole(both)).backward()
    assert both.grad.tolist() == right, "the mathematics"
    x = torch.tensor([2.0, 3.0][rank], requires_grad=True)
    result = all_reduce(x.clone(), op=getattr(dist.ReduceOp, name))
    ([10, 100][rank] * result).backward()
    seen = [None, None]
    dist.all_gather_object(seen, x.grad.item())
    if rank == 0:
        print(f"{name}: result {result.item()}; gradients of the two ranks {seen}, in one process {both.grad.tolist()}")
    assert result.item() == whole(both).item() and seen == wanted, f"changed: {name}: {seen}"
dist.destroy_process_group()
PY
OMP_NUM_THREADS=1 env/bin/torchrun --standalone --nproc-per-node 2 program.py
