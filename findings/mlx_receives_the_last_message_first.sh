#!/usr/bin/env bash
# Guess: where a rank of MLX receives four messages of another one, `a, b, c, d = (recv_like(x, 0) for ...)`, the first
# call has the first message, as with MPI, Gloo, NCCL and every socket.
# Seen (mlx 0.32.4 on the CPU, backend ring, two ranks): the first call has the last message, 3 2 1 0.  A receive is
# a node of the lazy graph, and takes what comes when it is evaluated: the nodes of an `eval` or a `concatenate` are
# walked from the last one on, and no node knows that another was made before it.  Sends are alike: four that are made
# in a list go out from the last one on, so where both sides have lists the two turns cancel.
# Where each receive is evaluated (`.item()`) before the next is made, the order is that of the calls.  Under
# mx.compile it is as without.  No error: messages of one shape cannot be told apart.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile mlx==0.32.4 mlx-cpu==0.32.4
cat > program.py <<'PY'
import mlx.core as mx

world = mx.distributed.init(strict=True)
like = mx.zeros(1)


def send(lazily):
    messages = [mx.distributed.send(mx.array([float(i)]), 1) for i in range(4)] if lazily else []
    for i in range(0 if lazily else 4):
        mx.eval(mx.distributed.send(mx.array([float(i)]), 1))
    mx.eval(messages)


def receive():
    return [mx.distributed.recv_like(like, 0) for _ in range(4)]


def show(name, lazily, received, wanted):
    if world.rank() == 0:
        return send(lazily)
    found = received()
    print(f"{name}: {found}", flush=True)
    assert found == wanted, f"changed: {name}"


def evaluated():
    four = receive()
    mx.eval(four)
    return [each.item() for each in four]


show("four receives, then eval", False, evaluated, [3, 2, 1, 0])
show("concatenated", False, lambda: mx.concatenate(receive()).tolist(), [3, 2, 1, 0])
show("compiled", False, lambda: mx.concatenate(mx.compile(lambda: receive())()).tolist(), [3, 2, 1, 0])
show("each read before the next", False, lambda: [each.item() for each in receive()], [0, 1, 2, 3])
show("four sends, then eval", True, lambda: [each.item() for each in receive()], [3, 2, 1, 0])
show("both in lists", True, evaluated, [0, 1, 2, 3])
print("as seen", flush=True)
PY
timeout 60 env/bin/mlx.launch -n 2 --backend ring --python "$PWD/env/bin/python" program.py | tee said
test "$(grep -c "as seen" said)" = 2  # the launcher ends with 0 whatever its ranks do
