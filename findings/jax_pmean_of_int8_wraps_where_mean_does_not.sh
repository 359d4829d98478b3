#!/usr/bin/env bash
# Guess: lax.pmean of integers is their mean as a float, as jnp.mean's, which adds them up in float32: of four 100 it
# is 100.
# Seen (jax and jaxlib 0.10.2, CPU, 4 devices): a float comes back, but of a sum that has wrapped in the integers'
# own dtype: the pmean of four int8 of 100 is -28, of four int32 of 2^31 - 2 it is -2, under shard_map, pmap and
# vmap.  jnp.mean of the same sharded array is right.  float16 is alike: the pmean of four 40,000 is infinity,
# jnp.mean's is 40,000.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet jax==0.10.2 jaxlib==0.10.2
cat > program.py <<'PY'
import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("i",))
mean = lambda v: jax.lax.pmean(v, "i")
for dtype, value, expected in (("int8", 100, -28), ("uint8", 254, 62), ("int16", 32766, -2), ("int32", 2**31 - 2, -2),
                               ("float16", 40000, np.inf)):
    x = np.full(4, value, dtype)
    found = [jax.jit(jax.shard_map(mean, mesh=mesh, in_specs=P("i"), out_specs=P("i")))(x),
             jax.pmap(mean, axis_name="i")(x), jax.vmap(mean, axis_name="i")(x)]
    whole = float(jnp.mean(jax.device_put(x, NamedSharding(mesh, P("i")))))
    print(f"four {dtype} of {value}: pmean {found[0][0]} ({found[0].dtype}), jnp.mean {whole}")
    assert all((one == expected).all() for one in found), f"changed: pmean of {dtype} is {found}"
    assert np.isclose(whole, value), f"changed: jnp.mean of {dtype} is {whole}"
PY
env/bin/python program.py
