#!/usr/bin/env bash
# Guess: multihost_utils.broadcast_one_to_all gives all processes the bits of the first one's array, and assert_equal
# takes an array for equal to itself.
# Seen (jax 0.10.2, two processes on CPUs): the broadcast is a sum with zeros, so -0.0 becomes 0.0 (process_allgather
# keeps it), and a step number of 2**40 + 1 is 1 on all processes, without a word, the source too.  assert_equal fails
# for the same NaN on both processes, and takes 0.0 for -0.0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
cat > program.py <<'PY'
import sys

import jax

jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))

import numpy as np
from jax.experimental import multihost_utils as several

given = np.array([-0.0, 1.5, np.nan], np.float32)
came = np.asarray(several.broadcast_one_to_all(given))
gathered = np.asarray(several.process_allgather(given))[0]
step = several.broadcast_one_to_all(np.array([2**40 + 1]))
several.assert_equal(np.array([-0.0 if sys.argv[2] == "0" else 0.0]), "zeros")
try:
    several.assert_equal(np.array([np.nan]), "nan")
    equal = True
except AssertionError:
    equal = False
bits = [[hex(bit) for bit in each.view(np.uint32)] for each in (given, came, gathered)]
print(f"given {bits[0]}, broadcast {bits[1]}, gathered {bits[2]}; step {step}, {step.dtype}; a NaN is equal: {equal}")
assert bits[2] == bits[0] and bits[1] == ["0x0", *bits[0][1:]], "changed"
assert step.tolist() == [1] and not equal, "changed"
PY
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
env/bin/python program.py "127.0.0.1:$port" 0 > first.txt 2> errors.txt &
env/bin/python program.py "127.0.0.1:$port" 1 2> errors1.txt || { cat errors1.txt; exit 1; }
wait $! || { cat errors.txt; exit 1; }
grep given first.txt
