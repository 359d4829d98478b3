#!/usr/bin/env bash
# Guess: the text of a compiled JAX program says which devices an all-reduce joins in one form, and a sum over all of a
# sharded array is one all-reduce over all devices.
# Seen (jax and jaxlib 0.10.2, CPU, 4 devices as 2 x 2): what a shard_map asks for has lists, {{0,2},{1,3}}; what jit puts
# in by itself has axes of a mesh that it names anew, mesh['axis_0'=2,'axis_1'=2] {'axis_0'}.  The sum over all of an
# array that is sharded over both axes is two all-reduces behind each other, one over each axis.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/pip install --quiet jax==0.10.2 jaxlib==0.10.2
cat > program.py <<'PY'
import re

import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
x = jax.device_put(np.arange(16.0).reshape(4, 4), NamedSharding(mesh, P("a", "b")))


def groups(function):
    text = jax.jit(function).lower(x).compile().as_text()
    return re.findall(r"all-reduce\(.*?replica_groups=(\{\{.*?\}\}|mesh\[.*?\] \{.*?\})", text)


asked = jax.shard_map(lambda v: jax.lax.psum(v, "a"), mesh=mesh, in_specs=P("a", "b"), out_specs=P(None, "b"))
found = {"asked for": groups(asked), "by jit": groups(lambda v: v.sum(0)), "all, by jit": groups(lambda v: v.sum())}
for name, forms in found.items():
    print(name, forms)
axes = "mesh['axis_0'=2,'axis_1'=2] "
assert found["asked for"] == ["{{0,2},{1,3}}"]
assert found["by jit"] == [axes + "{'axis_0'}"]
assert sorted(found["all, by jit"]) == [axes + "{'axis_0'}", axes + "{'axis_1'}"]
PY
env/bin/python program.py
