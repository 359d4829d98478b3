#!/usr/bin/env bash
# Guess: torch.from_dlpack of a read-only NumPy array is refused, copied or at least warned of: since NumPy 2.1 such
# an array goes out with DLPack 1's read-only flag, and torch.from_numpy warns.
# Seen (torch 2.13.0, numpy 2.4.6; torch 2.14.1 alike): from_dlpack drops the flag without a word, and what is
# written to the tensor is written into the array, and into the bytes object it was made of: an immutable object has
# changed, for every holder of it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile torch==2.13.0 numpy==2.4.6
cat > program.py <<'PY'
import warnings

import numpy as np
import torch

message = np.arange(3.0).tobytes()
x = np.frombuffer(message)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    torch.from_dlpack(x).mul_(10)
    silent = not told
    torch.from_numpy(x)
    warned = any("not writable" in str(one.message) for one in told)
print("writeable:", x.flags.writeable, "array:", x, "bytes:", np.frombuffer(message), "from_dlpack silent:", silent,
      "from_numpy warned:", warned)
assert not x.flags.writeable and silent and warned, "changed: warnings"
assert np.frombuffer(message).tolist() == [0, 10, 20], "changed: the bytes are as they were"
PY
env/bin/python program.py
