#!/usr/bin/env bash
# Guess: torch.distributed's all_reduce of a tensor that is not contiguous is an error with Gloo, as it is with NCCL
# ("Tensors must be contiguous"), or it sums its elements.
# Seen (torch 2.13.0, Gloo; 2.14.1 alike): neither.  As many elements as the tensor has are summed from where it
# begins in memory, whatever its strides: of x[::2] of eight numbers the first four neighbours, so two of the view's
# elements are sums, two are as before, and two numbers beside the view are changed.  Where one rank's tensor is
# transposed or channels_last and the other's is not, unlike elements are added.  No error, no warning.
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
rank = dist.get_rank()
memory = torch.arange(8.0)
dist.all_reduce(memory[::2])  # two equal ranks: twice each element, if it were theirs
matrix = torch.arange(6.0).reshape(2, 3)
if rank == 1:
    matrix = matrix.t().contiguous().t()
dist.all_reduce(matrix)
picture = torch.arange(24.0).reshape(1, 2, 3, 4)
if rank == 1:
    picture = picture.contiguous(memory_format=torch.channels_last)
dist.all_reduce(picture)
same = (picture == 2 * torch.arange(24.0).reshape(1, 2, 3, 4)).sum().item()
if rank == 0:
    print("strided:", memory.tolist(), "transposed:", matrix.tolist(), "channels_last, right of 24:", same)
assert memory.tolist() == [0, 2, 4, 6, 4, 5, 6, 7], f"changed: {memory.tolist()}"
assert matrix.tolist() == [[[0, 4, 3], [7, 6, 10]], [[0, 3, 6], [4, 7, 10]]][rank], f"changed: {matrix.tolist()}"
assert same < 24, "changed: channels_last is right"
dist.destroy_process_group()
PY
OMP_NUM_THREADS=1 env/bin/torchrun --standalone --nproc-per-node 2 program.py
