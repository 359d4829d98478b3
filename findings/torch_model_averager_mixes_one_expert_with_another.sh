#!/usr/bin/env bash
# Guess: PeriodicModelAverager.average_parameters(model.parameters()) gives each parameter the mean of that parameter
# over the ranks, and so all ranks the same model.
# Seen (torch 2.13.0, Gloo, two ranks): each rank leaves out what has no gradient of its own and joins the rest in one
# long tensor.  Where rank 0's batch went to the first of two experts and rank 1's to the second, the first expert of
# rank 0 is averaged with the second of rank 1, the others stay as they were, and the ranks hold different models.  A
# parameter that is frozen later stays different as well.  With zero_grad(set_to_none=False) it is as guessed.
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
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

warnings.simplefilter("ignore")
dist.init_process_group("gloo")
rank = dist.get_rank()


def train(chosen, set_to_none, frozen=False):
    experts = torch.nn.ModuleList(torch.nn.Linear(1, 1, bias=False) for _ in range(2))
    with torch.no_grad():
        experts[0].weight.fill_(1.0)
        experts[1].weight.fill_(100.0)
    optimizer = torch.optim.SGD(experts.parameters(), lr=1.0)
    averager = PeriodicModelAverager(period=1, warmup_steps=0)
    for expert in experts:  # a first step, of which the gradients are zeros
        expert(torch.zeros(1, 1)).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=set_to_none)
    for i in chosen:
        experts[i](torch.full((1, 1), rank + 1.0)).sum().backward()
    optimizer.step()
    if frozen:
        experts[1].requires_grad_(False).weight.grad = None
    averager.average_parameters(experts.parameters())
    return [expert.weight.item() for expert in experts]


for name, found, right, wanted in (
    ("both experts used", train([0, 1], True), [-0.5, 98.5], [-0.5, 98.5]),
    ("expert i on rank i, set_to_none=False", train([rank], False), [0.5, 99.0], [0.5, 99.0]),
    ("expert i on rank i", train([rank], True), [0.5, 99.0], [[49.0, 100.0], [1.0, 49.0]][rank]),
    ("second frozen", train([0, 1], True, True), [-0.5, 98.5], [-0.5, [99.0, 98.0][rank]]),
):
    print(f"rank {rank}, {name}: {found}, means of the ranks' {right}", flush=True)
    assert found == wanted, f"changed: {name}"
dist.destroy_process_group()
PY
OMP_NUM_THREADS=1 env/bin/torchrun --standalone --nproc-per-node 2 program.py
