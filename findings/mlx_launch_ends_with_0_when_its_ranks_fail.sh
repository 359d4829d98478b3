#!/usr/bin/env bash
# Guess: mlx.launch, as torchrun, mpiexec and srun, ends with another code than 0 where a rank does.
# Seen (mlx 0.32.4, backend ring, two ranks): it ends with 0 where a rank raises an error, where all ranks exit with 3,
# and where there is no such program.  It ends the other ranks, and warns of each one's code on its output; what it
# knows of them does not become its own code, so `set -e`, make and CI go on.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile mlx==0.32.4 mlx-cpu==0.32.4
cat > program.py <<'PY'
import sys
import time

import mlx.core as mx

rank = mx.distributed.init(strict=True).rank()
if sys.argv[1] == "all exit":
    raise SystemExit(3)
if rank == 1:
    raise ValueError("rank 1 fails")
time.sleep(10)
PY

launch() {
    timeout 60 env/bin/mlx.launch -n 2 --backend ring --python "$PWD/env/bin/python" "$@" > said 2>&1
}

launch program.py "all exit"
grep -q "rank 0 exited with code 3" said
launch program.py "one raises"
grep -q "ValueError: rank 1 fails" said
grep -q "rank 1 exited with code 1" said
launch nothing.py
grep -q "rank 1 exited with code 2" said
echo "three jobs failed, and mlx.launch ended with 0 each time"
