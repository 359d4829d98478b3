#!/usr/bin/env bash
# Guess: a PearsonCorrCoef that ranks computed together is that of one process with all samples, up to rounding.
# Seen (torchmetrics 1.9.0, torch 2.13.0, Gloo, three ranks): NaN where each rank's samples are equal, as with one sample
# a rank or data that is sorted by its label.  Means and variances are put together rightly, but the variances are then
# divided by the largest deviation that any rank saw from its own mean, which is 0.  One process that is given the
# same samples one by one has the right number, and so have three ranks of which one holds unlike samples.
# ConcordanceCorrCoef is alike.  No error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile torch==2.13.0 numpy==2.4.6 torchmetrics==1.9.0
cat > program.py <<'PY'
import math
import warnings

import torch
import torch.distributed as dist
from torchmetrics.regression import ConcordanceCorrCoef, PearsonCorrCoef

warnings.simplefilter("ignore")
dist.init_process_group("gloo")
rank = dist.get_rank()
x, y = torch.tensor([0.0, 1, 2]), torch.tensor([0.0, 3, 4])


def together(metric, x, y):
    metric.update(x, y)
    return metric.compute().item()


alone = PearsonCorrCoef(sync_on_compute=False)
for i in range(3):
    alone.update(x[i : i + 1], y[i : i + 1])
two = (x[rank].repeat(2), y[rank].repeat(2))
unlike = (x[rank] + torch.tensor([0.0, 1.0]) * (rank == 2), y[rank] + torch.tensor([0.0, 1.0]) * (rank == 2))
six = torch.tensor([[0.0, 0, 1, 1, 2, 3], [0, 0, 3, 3, 4, 5]])
assert abs(torch.corrcoef(six)[0, 1] - 0.948773) < 1e-5
for name, found, wanted in (
    ("one process", alone.compute().item(), 0.960769),
    ("a sample a rank", together(PearsonCorrCoef(), x[rank : rank + 1], y[rank : rank + 1]), math.nan),
    ("two equal ones", together(PearsonCorrCoef(), *two), math.nan),
    ("concordance", together(ConcordanceCorrCoef(), *two), math.nan),
    ("unlike ones on rank 2", together(PearsonCorrCoef(), *unlike), 0.948773),
):
    if rank == 0:
        print(f"{name}: {found:.6f}")
    right = math.isnan(found) if math.isnan(wanted) else abs(found - wanted) < 1e-5
    assert right, f"changed: {name}: {found}"
dist.destroy_process_group()
PY
OMP_NUM_THREADS=1 env/bin/torchrun --standalone --nproc-per-node 3 program.py
