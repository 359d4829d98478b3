#!/usr/bin/env bash
# Guess: x[a:b] -= y reads and writes the slice once, in torch as in NumPy, which skips the assignment of a slice to
# itself that Python makes behind an in-place operator.
# Seen (torch 2.13.0, numpy 2.4.6): torch makes that assignment: aten::sub_ is followed by an aten::copy_ of the same
# memory, the version counter goes on by two, and so does memory traffic.  By a name, s = x[a:b]; s -= y, it does not.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile torch==2.13.0 numpy==2.4.6
cat > program.py <<'PY'
import torch
from torch.profiler import ProfilerActivity, profile


def seen(act):
    x, y = torch.ones(1 << 20), torch.ones(1 << 19)
    before = x._version
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as told:
        act(x, y)
    assert bool((x[: 1 << 19] == 0).all())
    copies = [event for event in told.events() if event.name == "aten::copy_"]
    return x._version - before, len(copies)


def by_index(x, y):
    x[: 1 << 19] -= y


def by_name(x, y):
    part = x[: 1 << 19]
    part -= y


print("(versions, copies): by index", seen(by_index), "by a name", seen(by_name))
assert seen(by_index) == (2, 1), "changed: x[a:b] -= y"
assert seen(by_name) == (1, 0), "changed: part -= y"
PY
OMP_NUM_THREADS=1 env/bin/python program.py
