#!/usr/bin/env bash
# Guess: ZeroRedundancyOptimizer takes parameter groups as every optimizer of torch does, also in the form that
# torch.optim's documentation shows, {"params": module.parameters(), "lr": ...}, which is a generator.
# Seen (torch 2.13.0, 2.15.0 alike; Gloo, two ranks): it makes a list of the parameters for itself, which uses up the
# generators, and hands the used ones to its groups: none has a parameter.  step() changes no weight, on any rank, and
# nothing is raised or warned of.  With list(module.parameters()) in the groups, and with model.parameters() instead
# of groups, all is trained, and SGD itself takes the generators.
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
from torch.distributed.optim import ZeroRedundancyOptimizer

warnings.simplefilter("ignore")
dist.init_process_group("gloo")


def trained(make, groups):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = make(groups(model))
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    held = [len(group["params"]) for group in optimizer.param_groups]
    return sum(not torch.equal(p, b) for p, b in zip(model.parameters(), before)), held


def zero(params):
    return ZeroRedundancyOptimizer(params, torch.optim.SGD, lr=0.1)


def sgd(params):
    return torch.optim.SGD(params, lr=0.1)


def generators(model):
    return [{"params": model[0].parameters()}, {"params": model[1].parameters(), "lr": 0.01}]


def lists(model):
    return [{"params": list(model[0].parameters())}, {"params": list(model[1].parameters()), "lr": 0.01}]


cases = {
    "SGD, groups by generator": (sgd, generators, (4, [2, 2])),
    "ZeroRedundancyOptimizer, groups by generator": (zero, generators, (0, [0, 0])),
    "ZeroRedundancyOptimizer, groups by list": (zero, lists, (4, [2, 2])),
    "ZeroRedundancyOptimizer, no groups": (zero, lambda model: model.parameters(), (4, [4])),
}
for name, (make, groups, wanted) in cases.items():
    seen = trained(make, groups)
    if dist.get_rank() == 0:
        print(f"{name}: {seen[0]} of 4 parameters trained, its groups hold {seen[1]}")
    assert seen == wanted, f"changed: {name}: {seen}"
dist.destroy_process_group()
PY
OMP_NUM_THREADS=1 env/bin/torchrun --standalone --nproc-per-node 2 program.py
