#!/usr/bin/env bash
# Guess: jax.device_put of a NumPy array onto the devices of several processes takes each process's own part of it: nothing is
# sent, and what is in the array does not matter.
# Seen (jax and jaxlib 0.10.2, two processes on CPUs): every process gathers the whole array of every other one, and
# compares.  So an array with a NaN is refused as "not the same on each process", though it is, and so are whole numbers above
# 2**31, which are gathered as 32 bits.  Zeros of two signs pass, and each process keeps its own.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
cat > program.py <<'PY'
import sys

import jax

me = int(sys.argv[2])
jax.distributed.initialize(sys.argv[1], 2, me)

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

everywhere = NamedSharding(Mesh(np.array(jax.devices()), ("i",)), P("i"))


def put(x):
    try:
        jax.device_put(x, everywhere).block_until_ready()
        return "put"
    except AssertionError as error:
        return "refused" if "is not the same on each process" in str(error) else str(error)


given = {
    "ones": np.ones(4, np.float32),
    "a NaN": np.array([1, np.nan, 2, 3], np.float32),
    "2**40 + 1": np.full(4, 2**40 + 1),
    "zeros of two signs": np.full(4, -0.0 if me else 0.0, np.float32),
    "bfloat16 with a NaN": np.array([1, np.nan], jax.numpy.bfloat16),
}
found = {name: put(x) for name, x in given.items()}
print("found", found)
assert [*found.values()] == ["put", "refused", "refused", "put", "refused"], "changed"
PY
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
env/bin/python program.py "127.0.0.1:$port" 0 > first.txt 2> errors.txt &
env/bin/python program.py "127.0.0.1:$port" 1 2> errors1.txt || { cat errors1.txt; exit 1; }
wait $! || { cat errors.txt; exit 1; }
grep found first.txt
