#!/usr/bin/env bash
# Guess: jnp.max of an array with a NaN is NaN, however the array is sharded, and lax.pmax is as jnp.maximum, which
# keeps a NaN.
# Seen (jax and jaxlib 0.10.2, CPU, 4 devices): the max and min of a sharded array lose the NaN, eager and under jit,
# and so does the infinity norm; pmax and pmin under shard_map do, too, on whichever device the NaN is.  sum and
# logsumexp keep it, and so does pmax under vmap.  A check such as isnan(max(gradients)) passes or not by how they
# are laid out.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile jax==0.10.2 jaxlib==0.10.2
cat > program.py <<'PY'
import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("i",))
x = np.arange(8.0, dtype=np.float32)
x[3] = np.nan
sharded = jax.device_put(x, NamedSharding(mesh, P("i")))
lose = {"max": jnp.max, "min": jnp.min, "norm": lambda v: jnp.linalg.norm(v, jnp.inf)}
keep = {"sum": jnp.sum, "logsumexp": jax.nn.logsumexp}
for name, function in (lose | keep).items():
    jitted = jax.jit(function)
    whole, parts, eager = float(jitted(x)), float(jitted(sharded)), float(function(sharded))
    print(f"{name}: {whole} of one device's array, {parts} (jit) and {eager} (eager) of the sharded one")
    assert np.isnan(whole) and np.isnan(parts) == np.isnan(eager) == (name in keep), f"changed: {name}"

most_of = {op: jax.jit(jax.shard_map(lambda v, op=op: op(v, "i"), mesh=mesh, in_specs=P("i"), out_specs=P("i")))
           for op in (jax.lax.pmax, jax.lax.pmin)}
for dtype in (jnp.bfloat16, jnp.float32):
    for place in range(4):
        x = np.arange(4).astype(dtype)
        x[place] = np.nan
        most, least = (np.asarray(function(x)) for function in most_of.values())
        assert (most == (2 if place == 3 else 3)).all() and (least == (place == 0)).all(), f"changed: {dtype} {place}"
assert jnp.isnan(jax.vmap(lambda v: jax.lax.pmax(v, "i"), axis_name="i")(x)).all(), "changed: vmap"
print("pmax and pmin lose the NaN of each device, in two dtypes; pmax under vmap does not")
PY
env/bin/python program.py
