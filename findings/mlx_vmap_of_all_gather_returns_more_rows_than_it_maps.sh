#!/usr/bin/env bash
# Guess: mx.vmap(f)(x) of a matrix with two rows is f of each row, stacked: with f = all_gather on three ranks two rows
# of three parts each, shape (2, 6).
# Seen (mlx 0.32.4 on the CPU, backend ring, three ranks): six rows of one part each, shape (6, 2), in the order of the
# ranks.  The call is made of the whole matrix, joins the ranks' matrices along their first axis, and says that the
# mapped axis is still the first: it has three times as many rows as were mapped.  What follows in f goes on with these
# rows, so a sum in it gives six numbers, none of them the sum of what a row's all_gather has.  With in_axes=1 and
# out_axes=1 of (2, 2) it is alike, and the map's result is no transposed one of the other.
# vmap of all_sum, all_max and all_min is right.  No error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile mlx==0.32.4 mlx-cpu==0.32.4
cat > program.py <<'PY'
import mlx.core as mx

world = mx.distributed.init(strict=True)
gather = mx.distributed.all_gather
x = mx.array([[0, 1], [2, 3]]) + 10 * world.rank()


def show(name, found, wanted):
    found = found.tolist()
    if world.rank() == 0:
        print(f"{name}: {found}", flush=True)
    assert found == wanted, f"changed: {name}"


rows = [[0, 1], [2, 3], [10, 11], [12, 13], [20, 21], [22, 23]]
show("a row after the other", mx.stack([gather(row) for row in x]), [[0, 1, 10, 11, 20, 21], [2, 3, 12, 13, 22, 23]])
show("vmap", mx.vmap(gather)(x), rows)
show("vmap of the columns", mx.vmap(gather, in_axes=1, out_axes=1)(x), rows)
show("sums, a row after the other", mx.stack([gather(row).sum() for row in x]), [63, 75])
show("vmap of the sums", mx.vmap(lambda row: gather(row).sum())(x), [1, 5, 21, 25, 41, 45])
show("vmap of all_sum", mx.vmap(mx.distributed.all_sum)(x), [[30, 33], [36, 39]])
print("as seen", flush=True)
PY
timeout 60 env/bin/mlx.launch -n 3 --backend ring --python "$PWD/env/bin/python" program.py | tee said
test "$(grep -c "as seen" said)" = 3  # the launcher ends with 0 whatever its ranks do
