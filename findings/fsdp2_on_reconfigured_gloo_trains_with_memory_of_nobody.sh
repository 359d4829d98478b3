#!/usr/bin/env bash
# Guess: when torch's elastic API has taken a rank out of a group (dist._reconfigure, torch 2.14), an FSDP2 module that
# was made on it before fails at its next all-gather, as a third of each parameter is missing.
# Seen (torch 2.14.1, Gloo): it goes on without a word.  The first forward pass still has the old parameters; after one
# step of SGD the shards of the two that are left lie one behind the other, so the last rank's rows have moved, and the
# rest of each parameter is memory that nobody has written: other numbers on each rank.  torch's table of the group's
# ranks (get_process_group_ranks) still has three.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile torch==2.14.1 numpy==2.4.6
cat > program.py <<'PY'
import datetime
import os
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

warnings.simplefilter("ignore")
rank, limit = int(os.environ["RANK"]), datetime.timedelta(seconds=60)
store = dist.FileStore("store", 3)
dist.init_process_group("gloo", rank=rank, world_size=3, store=store, enable_reconfigure=True, timeout=limit)


def meet(uuid, ranks):
    store.set(f"{uuid}/{rank}", dist._get_reconfigure_handle())
    dist._reconfigure(uuid, [store.get(f"{uuid}/{each}").decode() for each in ranks], timeout=limit).wait()


def outputs():
    return model(torch.ones(1, 1))


meet(1, [0, 1, 2])
model = torch.nn.Linear(1, 6, bias=False)
with torch.no_grad():
    model.weight.copy_(torch.arange(10.0, 16.0).reshape(6, 1))
fully_shard(model, mesh=init_device_mesh("cpu", (3,)))
optimizer = torch.optim.SGD(model.parameters(), 1.0)
assert outputs().flatten().tolist() == [10, 11, 12, 13, 14, 15]
if rank == 1:
    store.wait(["done/0", "done/2"], limit)
else:
    meet(2, [0, 2])
    outputs().sum().backward()
    optimizer.step()  # each output is one less
    after = outputs().flatten().tolist()
    print(f"rank {rank}: {after}, {dist.get_world_size()} ranks, and in torch's table {dist.get_process_group_ranks(None)}")
    assert after[:4] == [9, 10, 13, 14], f"changed: {after}"
    assert after != [9, 10, 11, 12, 13, 14] and after[4:] != [13, 14], f"changed: {after}"
    assert (dist.get_world_size(), len(dist.get_process_group_ranks(None))) == (2, 3), "changed"
    store.set(f"done/{rank}", "")
os._exit(0)
PY
for rank in 1 2; do RANK=$rank OMP_NUM_THREADS=1 env/bin/python program.py & done
RANK=0 OMP_NUM_THREADS=1 env/bin/python program.py
wait -n
wait -n
