#!/usr/bin/env bash
# Guess: idist.broadcast(number) gives every rank that number, as idist.all_gather and all_reduce keep 53 bits of a float
# and 64 of an integer.
# Seen (pytorch-ignite 0.5.5, torch 2.13.0, Gloo, two ranks): a float32, as a float.  Of 0.1 every rank has
# 0.10000000149011612, the one that sent it, too; of the integer 5 the float 5.0; of 2**24 + 1 the float 16777216.0, so a
# seed or a count of samples is another one.  all_reduce and all_gather of the same numbers are right.  No error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile torch==2.13.0 numpy==2.4.6 pytorch-ignite==0.5.5
cat > program.py <<'PY'
import ignite.distributed as idist
import torch.distributed as dist

dist.init_process_group("gloo")
idist.sync()
for name, found, wanted in (
    ("broadcast of 0.1", idist.broadcast(0.1), 0.10000000149011612),
    ("broadcast of 5", idist.broadcast(5), 5.0),
    ("broadcast of 2**24 + 1", idist.broadcast(2**24 + 1), 16777216.0),
    ("all_gather of 2**24 + 1", idist.all_gather(2**24 + 1)[0], 16777217),
    ("all_reduce of 0.1", idist.all_reduce(0.1), 0.2),
):
    if dist.get_rank() == 0:
        print(f"{name}: {found!r}")
    assert repr(found) == repr(wanted), f"changed: {name}"
dist.destroy_process_group()
PY
OMP_NUM_THREADS=1 env/bin/torchrun --standalone --nproc-per-node 2 program.py
