#!/usr/bin/env bash
# Guess: where the entries of a state dict differ by rank without being sharded, torch.distributed.checkpoint keeps
# those of one rank, rank 0's.
# Seen (torch 2.13.0; 2.14.1 alike): each entry is written by the rank that has least to write so far.  With two
# ranks and equal keys the checkpoint has the step of rank 0 beside the name of rank 1, and tensors by turns of both:
# a state that no rank was ever in (an optimizer's moments beside another rank's, a generator's seed beside another's
# place), on all ranks after loading, without a word.
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
import torch.distributed.checkpoint as dcp

warnings.simplefilter("ignore")
dist.init_process_group("gloo")


def state(rank):
    return {"step": rank, "name": f"of rank {rank}"} | {key: torch.full((4,), float(rank)) for key in "abcd"}


dcp.save(state(dist.get_rank()), checkpoint_id="saved")
loaded = state(-1)
dcp.load(loaded, checkpoint_id="saved")
loaded = {key: value[0].item() if key in "abcd" else value for key, value in loaded.items()}
if dist.get_rank() == 0:
    print(loaded)
assert (loaded["step"], loaded["name"]) == (0, "of rank 1"), f"changed: {loaded}"
assert {loaded[key] for key in "abcd"} == {0, 1}, f"changed: {loaded}"
dist.destroy_process_group()
PY
OMP_NUM_THREADS=1 env/bin/torchrun --standalone --nproc-per-node 2 program.py
