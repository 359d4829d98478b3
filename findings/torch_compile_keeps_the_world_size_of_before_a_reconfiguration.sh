#!/usr/bin/env bash
# Guess: when torch's elastic API has taken a rank out of the group (dist._reconfigure), a compiled function that divides
# a sum by dist.get_world_size() is compiled again, as a function of a size that has changed would be.
# Seen (torch 2.14.1, Gloo): the size is a constant of the program, without a guard.  Two ranks go on, get_world_size()
# says 2 beside it, and the average of 6 and 6 is 4, in silence.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile torch==2.14.1 numpy==2.4.6
cat > program.py <<'PY'
import datetime
import os

import torch
import torch.distributed as dist

rank, limit = int(os.environ["RANK"]), datetime.timedelta(seconds=60)
store = dist.FileStore("store", 3)
dist.init_process_group("gloo", rank=rank, world_size=3, store=store, enable_reconfigure=True, timeout=limit)


def meet(uuid, ranks):
    store.set(f"{uuid}/{rank}", dist._get_reconfigure_handle())
    dist._reconfigure(uuid, [store.get(f"{uuid}/{each}").decode() for each in ranks], timeout=limit).wait()


def average(x):
    dist.all_reduce(x)
    return x / dist.get_world_size()


compiled = torch.compile(average, backend="eager")
meet(1, [0, 1, 2])
assert compiled(torch.tensor(6.0)) == average(torch.tensor(6.0)) == 6
if rank == 1:
    store.wait(["done/0", "done/2"], limit)
else:
    meet(2, [0, 2])
    found = compiled(torch.tensor(6.0)), average(torch.tensor(6.0))
    print(f"rank {rank} of {dist.get_world_size()}: {found[0]} compiled, {found[1]} not")
    assert found == (4, 6), f"changed: {found}"
    store.set(f"done/{rank}", "")
os._exit(0)
PY
for rank in 1 2; do RANK=$rank OMP_NUM_THREADS=1 env/bin/python program.py & done
RANK=0 OMP_NUM_THREADS=1 env/bin/python program.py
wait -n
wait -n
