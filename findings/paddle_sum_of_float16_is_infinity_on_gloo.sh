#!/usr/bin/env bash
# Guess: paddle.distributed.all_reduce of float16 1 on two ranks of the backend gloo is 2.
# Seen (paddlepaddle 3.3.1 on the CPU, two ranks): infinity.  So is every sum in which something is not 0, also 1 + 0 and
# the sum of the smallest float16, and every product; 0 + 0 is 0.  MAX, MIN, broadcast and all_gather of float16 are
# right, and so is the sum of float32.  torch's Gloo adds up float16 rightly on the same machine.  No error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile paddlepaddle==3.3.1 numpy==2.4.6 setuptools==80.9.0
cat > program.py <<'PY'
import faulthandler

import numpy as np
import paddle
from paddle import distributed

faulthandler.dump_traceback_later(60, exit=True)
distributed.init_parallel_env()
rank, op = distributed.get_rank(), distributed.ReduceOp
inf = float("inf")


def reduced(values, how, dtype="float16"):
    x = paddle.to_tensor(np.array(values, dtype))
    distributed.all_reduce(x, how)
    return x.tolist()


for name, found, wanted in (
    ("1 + 1", reduced([1.0, 1.0], op.SUM), [inf, inf]),
    ("1 + 0", reduced([float(rank)], op.SUM), [inf]),
    ("0 + 0", reduced([0.0], op.SUM), [0.0]),
    ("2**-24 + 2**-24", reduced([2.0**-24], op.SUM), [inf]),
    ("1 * 1", reduced([1.0], op.PROD), [inf]),
    ("max(1, 2)", reduced([1.0 + rank], op.MAX), [2.0]),
    ("1 + 1 in float32", reduced([1.0], op.SUM, "float32"), [2.0]),
):
    if rank == 0:
        print(f"{name}: {found}", flush=True)
    assert found == wanted, f"changed: {name}"
parts = []
distributed.all_gather(parts, paddle.to_tensor(np.array([1.0 + rank], "float16")))
assert [each.tolist() for each in parts] == [[1.0], [2.0]], "changed: all_gather"
open(f"as_seen.{rank}", "w").close()
PY
PADDLE_DISTRI_BACKEND=gloo timeout 120 env/bin/python -m paddle.distributed.launch --nproc_per_node 2 --backend gloo \
    program.py > said 2>&1 || { cat said log/workerlog.*; exit 1; }
grep " [+*] \|max" log/workerlog.0
test -e as_seen.0 -a -e as_seen.1
