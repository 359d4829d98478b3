#!/usr/bin/env bash
# Guess: jnp.sum of int4 is an int32, as of int8.
# Seen (jax 0.10.2, numpy 2.4.6, ml_dtypes 0.6.0): sum, prod, nansum and trace of int4, uint4 and int2 raise "Invalid
# integer data type 'V'": JAX asks NumPy how wide the type is, and NumPy knows its own integers alone.  mean of int4 is
# right.  cumsum stays int4 and wraps: of eight ones it ends with -8.  With dtype= they work.  A lax.psum over devices
# stays int4, too: of 15 ones it is -1.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 ml_dtypes==0.6.0
cat > program.py <<'PY'
import jax
import jax.numpy as jnp

jax.config.update("jax_num_cpu_devices", 15)
assert jnp.ones(10, jnp.int8).sum().dtype == jnp.int32
for kind in (jnp.int4, jnp.uint4, jnp.int2):
    x = jnp.ones(8, kind)
    for name, of in (("sum", x), ("prod", x), ("nansum", x), ("trace", jnp.ones((3, 3), kind))):
        try:
            print(f"{name} of {x.dtype.name}: {getattr(jnp, name)(of)}")
            raise SystemExit("changed")
        except ValueError as why:
            print(f"{name} of {x.dtype.name}: {type(why).__name__}: {why}")
    assert int(x.sum(dtype=jnp.int32)) == 8, "changed"
ends = jnp.ones(8, jnp.int4)
print(f"int4: mean {ends.mean()}, cumsum {ends.cumsum()}")
assert float(ends.mean()) == 1 and int(ends.cumsum()[-1]) == -8, "changed"
total = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(jnp.ones(15, jnp.int4))
print(f"psum of 15 ones: {int(total[0])}, {total.dtype}")
assert int(total[0]) == -1, "changed"
PY
env/bin/python program.py
