#!/usr/bin/env bash
# Guess: the dumps of torch's Flight Recorder of a Gloo job that ended well, given to torchfrtrace of the same wheel, say
# that all calls and the one message are complete.
# Seen (torch 2.13.0): torchfrtrace ends with a KeyError, as the dumps list the members of a group "", and their calls
# are of a group "0".  Every call that has ended is "scheduled", as if it had not begun, and send and recv are not there
# at all: where a Gloo job hangs, the recorder does not tell finished calls from the one that hangs.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile torch==2.13.0 numpy==2.4.6 tabulate==0.9.0
cat > program.py <<'PY'
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

dist.init_process_group("gloo")
rank, x = dist.get_rank(), torch.ones(4)
dist.all_reduce(x)
dist.send(x, 1) if rank == 0 else dist.recv(x, 0) if rank == 1 else None
dist.all_reduce(x)
dist.barrier()
with open(f"dumps/rank_{rank}", "wb") as file:
    file.write(_dump_fr_trace())
dist.barrier()
PY
mkdir dumps
OMP_NUM_THREADS=1 env/bin/torchrun --standalone --nproc-per-node 3 program.py
cat > look.py <<'PY'
import pickle

for rank in range(3):
    with open(f"dumps/rank_{rank}", "rb") as file:
        dump = pickle.load(file)
    calls = [(each["profiling_name"], each["state"]) for each in dump["entries"]]
    print(rank, calls, dump["pg_config"])
    assert calls == [(f"gloo:{name}", "scheduled") for name in ("all_reduce", "all_reduce", "barrier")], "changed"
PY
env/bin/python look.py
if env/bin/torchfrtrace --prefix rank_ dumps > said 2>&1; then
    echo "changed: torchfrtrace has read them"
    exit 1
fi
tail -n 1 said
grep -q "^KeyError" said
