#!/usr/bin/env bash
# Guess: the derivative (jvp) of MLX's all_max is that of the rank that has the maximum, as the jvp of mx.max on one
# process is that of the largest element.
# Seen (mlx 0.32.4 on the CPU, backend ring, three ranks with 0, 1, 2): the largest derivative of any rank.  With
# tangents 3, 2, 1 it is 3, that of the rank whose value is the smallest; all_min of tangents 1, 2, 3 with values 2, 1, 0
# is alike: 1, where the smallest value moves by 3.  The tangents are put through all_max (all_min) as the values are.
# mx.max is right, and so is all_sum, whose derivative is the sum.  A step of 1/1024 along the tangents shows what is
# right.  No error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile mlx==0.32.4 mlx-cpu==0.32.4
cat > program.py <<'PY'
import mlx.core as mx

world = mx.distributed.init(strict=True)
step = 1 / 1024


def show(name, function, value, tangent, wanted, moved):
    x, t = mx.array([float(value)]), mx.array([float(tangent)])
    seen = mx.jvp(function, [x], [t])[1][0].item()
    in_fact = ((function(x + step * t) - function(x)) / step).item()
    if world.rank() == 0:
        print(f"{name}: {seen}, by a small step {in_fact}", flush=True)
    assert (seen, in_fact) == (wanted, moved), f"changed: {name}"


rank = world.rank()
show("all_max of 0 1 2, tangents 3 2 1", mx.distributed.all_max, rank, 3 - rank, 3, 1)
show("all_min of 2 1 0, tangents 1 2 3", mx.distributed.all_min, 2 - rank, 1 + rank, 1, 3)
show("all_sum, tangents 3 2 1", mx.distributed.all_sum, rank, 3 - rank, 6, 6)
both = mx.array([0.0, 1.0, 2.0])
on_one = mx.jvp(mx.max, [both], [mx.array([3.0, 2.0, 1.0])])[1][0].item()
assert on_one == 1, "changed: mx.max"
print("as seen", flush=True)
PY
timeout 60 env/bin/mlx.launch -n 3 --backend ring --python "$PWD/env/bin/python" program.py | tee said
test "$(grep -c "as seen" said)" = 3  # the launcher ends with 0 whatever its ranks do
