#!/usr/bin/env bash
# Guess: the sum of torch.bool tensors is "or", in True and False, however often and over how many ranks.
# Seen (torch 2.13.0, Gloo; 2.14.1 alike): the bytes are added.  True and True is a True whose byte is 2: it equals
# another True, but its bytes, and a hash of them, do not.  After eight sums over two ranks the byte is 256, which is
# 0: True has become False, without an error (so in one sum over 256 ranks).  ReduceOp.MAX and BOR keep 1.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile torch==2.13.0 numpy==2.4.6
cat > program.py <<'PY'
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
one, many = torch.tensor([True, False]), torch.tensor([True])
dist.all_reduce(one)
for _ in range(8):
    dist.all_reduce(many)
if dist.get_rank() == 0:
    print(one, "bytes", one.view(torch.uint8).tolist(), "equal to True:", torch.equal(one, torch.tensor([True, False])),
          "after eight sums:", many.tolist())
assert one.tolist() == [True, False] and one.view(torch.uint8).tolist() == [2, 0], "changed: bytes"
assert one.numpy().tobytes() != b"\1\0", "changed: NumPy's bytes"
assert many.tolist() == [False], "changed: still True after eight sums"
for op in (dist.ReduceOp.MAX, dist.ReduceOp.BOR):
    one = torch.tensor([True])
    dist.all_reduce(one, op)
    assert one.view(torch.uint8).tolist() == [1], "changed: " + str(op)
dist.destroy_process_group()
PY
OMP_NUM_THREADS=1 env/bin/torchrun --standalone --nproc-per-node 2 program.py
