#!/usr/bin/env bash
# Guess: cosine_embedding_loss of two DTensors is the tensors', whichever dim is sharded.
# Seen (torch 2.13.0, Gloo, float32): where the embeddings are sharded along their features, it is 1 too much for each
# rank but one: 1.29 for 0.29 on two ranks, 2.29 on three.  Each rank has a part of the cosine and takes it from 1, and then
# these are added.  1 - cosine_similarity(a, b), the same in Python, is right, and so is the loss where the rows are
# sharded evenly, and a loss whose targets are all -1.  No error.
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
from torch.nn.functional import cosine_embedding_loss as loss
from torch.nn.functional import cosine_similarity

warnings.simplefilter("ignore")
dist.init_process_group("gloo")
size = dist.get_world_size()
mesh = init_device_mesh("cpu", (size,))
a, b = torch.eye(6) + 0.5, torch.eye(6).roll(1, 0) + 0.5
like, unlike = torch.ones(6), -torch.ones(6)


def whole(array, placement):
    return distribute_tensor(array, mesh, [placement])


features, rows = Shard(1), Shard(0)
by_features, by_rows = [whole(v, features) for v in (a, b)], [whole(v, rows) for v in (a, b)]
wanted = {
    "loss, features sharded": (loss(a, b, like), loss(*by_features, whole(like, Replicate())), size - 1),
    "1 - similarity": ((1 - cosine_similarity(a, b)).mean(), (1 - cosine_similarity(*by_features)).mean(), 0),
    "loss, rows sharded": (loss(a, b, like), loss(*by_rows, whole(like, rows)), 0),
    "targets -1": (loss(a, b, unlike), loss(*by_features, whole(unlike, Replicate())), 0),
}
for name, (tensor, parts, more) in wanted.items():
    split = parts.full_tensor()
    if dist.get_rank() == 0:
        print(f"{size} ranks, {name}: {tensor.item():.4f} of the tensors, {split.item():.4f} of the DTensors")
    assert abs(split.item() - tensor.item() - more) < 1e-4, f"changed: {name}"
dist.destroy_process_group()
PY
for ranks in 2 3; do OMP_NUM_THREADS=1 env/bin/torchrun --standalone --nproc-per-node $ranks program.py; done
