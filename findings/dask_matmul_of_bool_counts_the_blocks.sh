#!/usr/bin/env bash
# Guess: the product of two Dask matrices of bool is of bool, as NumPy's, "is there a path of two steps", however they
# are cut into blocks.
# Seen (dask 2026.8.0, numpy 2.4.6): it is int64 where the inner axis has several blocks, and says in how many of them
# there is a path: of 8 places that are all True it is True in one block, then 2, 4 and 8, and `~` of them is False,
# -3, -5 and -9, which are true but for the first.  dot, tensordot and einsum are int64 in one block, too: 1, whose
# `~` is -2. Products of uint8 wrap within a block and do not when the blocks are added up: 15 times 15 in 8 places,
# 1800, is 8 in one block (NumPy's), 264 in two, 776 in four, 1800 in eight.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile dask==2026.8.0 numpy==2.4.6
cat > program.py <<'PY'
import dask.array
import numpy as np

ways = {"@": lambda x: x @ x.T, "dot": lambda x: dask.array.dot(x, x.T),
        "tensordot": lambda x: dask.array.tensordot(x, x.T, 1),
        "einsum": lambda x: dask.array.einsum("ik,jk->ij", x, x)}


def product(x, size, way="@"):
    lazily = ways[way](dask.array.from_array(x, chunks=(1, size)))
    found = lazily.compute()
    assert found.dtype == lazily.dtype
    return found.dtype.name, found.item(), (~lazily).compute().item()


steps, numbers = np.ones((1, 8), bool), np.full((1, 8), 15, np.uint8)
print("NumPy:", (steps @ steps.T).item(), (numbers @ numbers.T).item())
assert (steps @ steps.T).tolist() == [[True]] and (numbers @ numbers.T).tolist() == [[8]]
wanted = {8: ("bool", True, False), 4: ("int64", 2, -3), 2: ("int64", 4, -5), 1: ("int64", 8, -9)}
for size, want in wanted.items():
    found = {way: product(steps, size, way) for way in ways}
    print(f"bool, {8 // size} blocks: dtype, product, not product: {found}")
    others = ("int64", 1, -2) if size == 8 else want
    assert found == dict(zip(ways, (want, others, others, others))), "changed"
for size, want in ((8, ("uint8", 8)), (4, ("uint64", 264)), (2, ("uint64", 776)), (1, ("uint64", 1800))):
    found = product(numbers, size)[:2]
    print(f"uint8, {8 // size} blocks: {found}")
    assert found == want, "changed"
PY
env/bin/python program.py
