#!/usr/bin/env bash
# Guess: conv2d of images whose rows are split over two ranks is that of the whole images, or is refused: DTensor has a
# convolution that exchanges the borders of shards, and for all other operations it gathers what it cannot split.
# Seen (torch 2.13.0, Gloo, two ranks, no gradients): each rank convolves its own half, with the padding of a whole
# image, and the halves, which differ, are called Replicate: the result of 8 by 8 images is 4 by 8, full_tensor() is
# another on each rank, and its mean is that of half of the image.  The same with columns, and in conv1d.  The
# DTensor's own shape says 8 by 8.  Split by images it is right.
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
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

warnings.simplefilter("ignore")
dist.init_process_group("gloo")
rank, mesh = dist.get_rank(), init_device_mesh("cpu", (2,))
torch.manual_seed(0)
weight = torch.ones(1, 1, 3, 3)
images = torch.arange(64.0).view(1, 1, 8, 8).repeat(4, 1, 1, 1)
whole = torch.nn.functional.conv2d(images, weight, padding=1)
mine = {0: whole}
for dim in (2, 3):
    mine[dim] = torch.nn.functional.conv2d(images.chunk(2, dim)[rank], weight, padding=1)
for dim, name in (0, "images"), (2, "rows"), (3, "columns"):
    x = distribute_tensor(images, mesh, [Shard(dim)])
    y = torch.nn.functional.conv2d(x, distribute_tensor(weight, mesh, [Replicate()]), padding=1)
    full = y.full_tensor()
    print(f"rank {rank}, split by {name}: {y.placements} of {tuple(y.shape)}, full_tensor() {tuple(full.shape)}, "
          f"mean {full.mean():.2f}, of the tensor {tuple(whole.shape)}, mean {whole.mean():.2f}", flush=True)
    assert tuple(y.shape) == tuple(whole.shape), "changed: the shape that is told"
    assert y.placements == ((Shard(0),) if dim == 0 else (Replicate(),)), "changed: the placement"
    assert torch.equal(full, mine[dim]), "changed: the result"
dist.destroy_process_group()
PY
OMP_NUM_THREADS=1 env/bin/torchrun --standalone --nproc-per-node 2 program.py
