#!/usr/bin/env bash
# Guess: torch.manual_seed takes 64 bits, as its documentation says, so ranks that put their number into the upper half
# (seed + (rank << 32)) draw different numbers.
# Seen (torch 2.13.0, CPU): all of them draw the same: its generator keeps the seed whole (`initial_seed` tells them
# apart) and starts from the lower 32 bits alone, so weights, dropout and shuffles are alike on all ranks.  NumPy
# 2.4.6 tells such seeds apart.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile torch==2.13.0 numpy==2.4.6
cat > program.py <<'PY'
import numpy as np
import torch

seeds = [7 + (rank << 32) for rank in range(4)]


def of_torch(seed):
    made = torch.Generator().manual_seed(seed)
    assert made.initial_seed() == seed
    return torch.randn(3, generator=made).tolist(), torch.randperm(9, generator=made).tolist()


drawn = {
    "torch": [of_torch(seed) for seed in seeds],
    "numpy": [np.random.default_rng(seed).normal(size=3).tolist() for seed in seeds],
}
for name, numbers in drawn.items():
    print(f"{name}: {len({str(each) for each in numbers})} different rows of {len(seeds)} seeds")
assert len({str(each) for each in drawn["torch"]}) == 1, "changed"
assert len({str(each) for each in drawn["numpy"]}) == 4
PY
env/bin/python program.py
