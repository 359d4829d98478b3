#!/usr/bin/env bash
# Guess: x.sum().item() of a DTensor is the sum of all of it, or is refused, as the value is not on this rank.
# Seen (torch 2.13.0, Gloo, two ranks with 1 to 4 and 5 to 8): item(), float() and int() of a sum, a mean and a maximum
# give what this rank's shard has: 10 and 26 of 36, 2.5 and 6.5 of 4.5, 4 and 8 of 8.  Comparisons know better:
# `x.sum() > 30` is true on both.  So a logged loss, or a step that depends on it, differs by rank without a word.
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
rank = dist.get_rank()
x = distribute_tensor(torch.arange(1.0, 9), init_device_mesh("cpu", (2,)), [Shard(0)])
total = x.sum()
came = [total.item(), float(total), int(total), x.mean().item(), x.max().item()]
whole = total.full_tensor().item()
more = bool(total > 30)
print(f"rank {rank}: item, float, int of the sum, item of mean and max {came}; of all {whole}; more than 30: {more}")
assert came == ([10, 10, 10, 2.5, 4] if rank == 0 else [26, 26, 26, 6.5, 8]), "changed"
assert whole == 36 and more, "changed"
dist.destroy_process_group()
PY
env/bin/python -m torch.distributed.run --nproc-per-node 2 program.py 2> errors.txt || { cat errors.txt; exit 1; }
