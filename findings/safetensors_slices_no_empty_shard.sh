#!/usr/bin/env bash
# Guess: a shard without rows, which a rank has when fewer rows than ranks are dealt, is read like any other.
# Seen (safetensors 0.8.0, numpy 2.4.6): it is saved, and get_tensor returns it, but get_slice(name)[:], by which
# loaders read parts of a file, raises "index 0 out of bounds for tensor dimension #0"; so do [0:0] and [...].  [0:0] of
# a shard that has rows is fine.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile numpy==2.4.6 safetensors==0.8.0
cat > program.py <<'PY'
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

rows = np.arange(12, dtype=np.float32).reshape(4, 3)
save_file({"empty": rows[:0].copy(), "rows": rows}, "shard.safetensors")
with safe_open("shard.safetensors", "np") as file:
    empty, whole = file.get_slice("empty"), file.get_slice("rows")
    assert file.get_tensor("empty").shape == (0, 3) == whole[0:0].shape
    for what, key in (("[:]", slice(None)), ("[0:0]", slice(0, 0)), ("[...]", ...)):
        try:
            raise SystemExit(f"changed: {what} of the empty one is {empty[key]}")
        except SafetensorError as why:
            print(f"{what} of the empty one: {why}")
PY
env/bin/python program.py
