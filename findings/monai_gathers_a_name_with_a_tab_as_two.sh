#!/usr/bin/env bash
# Guess: monai.utils.string_list_all_gather(strings) is the ranks' lists, one after the other, as its documentation says.
# Seen (monai 1.6.1, torch 2.13.0, Gloo, two ranks): a string with a tab comes as two, and a rank that has none adds an
# empty one.  The strings are joined by tabs, sent, and split: ["scan\t1", "scan 2"] and [] come as "scan", "1", "scan 2"
# and "", so names no longer stand beside the results that were gathered with them.  No error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile torch==2.13.0 numpy==2.4.6 monai==1.6.1
cat > program.py <<'PY'
import torch.distributed as dist
from monai.utils import string_list_all_gather

dist.init_process_group("gloo")
rank = dist.get_rank()
for name, mine, wanted in (
    ("plain", ["scan 1", "scan 2"][: 2 - rank], ["scan 1", "scan 2", "scan 1"]),
    ("a tab", ["scan\t1"], ["scan", "1", "scan", "1"]),
    ("none of rank 1's", ["scan"][rank:], ["scan", ""]),
):
    found = string_list_all_gather(mine)
    if rank == 0:
        print(f"{name}: {found}")
    assert found == wanted, f"changed: {name}"
dist.destroy_process_group()
PY
OMP_NUM_THREADS=1 env/bin/torchrun --standalone --nproc-per-node 2 program.py
